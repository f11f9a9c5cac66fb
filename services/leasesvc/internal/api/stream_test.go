package api

import (
	"sync/atomic"
	"testing"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// frozenSessions are those of a replica whose lease may lapse before it notices.
type frozenSessions struct {
	Sessions
	lapsed atomic.Bool
}

func (s *frozenSessions) CheckTerms() error {
	if s.lapsed.Load() {
		return sessioncontroller.ErrStopped
	}
	return s.Sessions.CheckTerms()
}

// A beat that is recorded when another replica may lead the shard gets no acknowledgement: the
// client goes elsewhere, or writes the Lease itself.
func TestStream_NoBeatIsAcknowledgedOnceTheLeaseHasLapsed(t *testing.T) {
	f := newFixture(t, setup{maxRegistrations: unlimited})
	sessions := &frozenSessions{Sessions: f.sessions}
	f.server.Sessions = func() Sessions { return sessions }
	s := f.openStreamAs(t, unchecked())
	s.register(holders(0, 1)...)
	sessions.lapsed.Store(true)
	s.requests <- &leasev1.StreamHeartbeatsRequest{Sequence: s.sequence + 1, Handles: []uint32{1}}
	if response := <-s.responses; response.GetGrant() != nil || response.GetDirective() != leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE {
		t.Errorf("the beat was answered with %v", response)
	}
	if err := <-s.ended; rpcerror.ReasonOf(err) != rpcerror.NoLeaderReason && rpcerror.ReasonOf(err) != rpcerror.NotLeaderReason {
		t.Errorf("the stream ended with %v", err)
	}
}
