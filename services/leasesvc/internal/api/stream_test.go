package api

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// failingSessions has a Process that returns the errors of failure, and that of Sessions if there
// are none.
type failingSessions struct {
	Sessions
	failure chan error
}

func (s failingSessions) Process(ctx context.Context, batch *sessioncontroller.Batch) error {
	select {
	case err := <-s.failure:
		return err
	default:
		return s.Sessions.Process(ctx, batch)
	}
}

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

// RecvMsg returns by gRPC's context. The context of the handler is derived from it and ends later,
// so a stream can be lost while its context is alive.
func TestReceipts_CountAStreamAsLostByWhatItsTransportReturns(t *testing.T) {
	f := newFixture(t, setup{maxRegistrations: unlimited})
	sessions := failingSessions{Sessions: f.sessions, failure: make(chan error, 1)}
	f.server.Sessions = func() Sessions { return sessions }
	denied := rpcerror.New(codes.Unauthenticated, rpcerror.NotAuthenticatedReason, "the token was revoked")
	for _, c := range []struct {
		name                             string
		received, inner, response, cause error // of RecvMsg, of the processing of a message, of SendMsg, of the context
		lost                             uint64
	}{
		{name: "the client is gone", received: status.Error(codes.Canceled, "context canceled"), lost: 1},
		{name: "the client's deadline", received: status.Error(codes.DeadlineExceeded, "context deadline exceeded"), lost: 1},
		{name: "the client is gone, and the context ends first", cause: context.Canceled, lost: 1},
		{name: "the connection closes", response: status.Error(codes.Unavailable, "transport is closing"), lost: 1},
		{name: "the response is too large", response: status.Error(codes.ResourceExhausted, "trying to send message larger than max")},
		{name: "an inner deadline", inner: context.DeadlineExceeded},
		{name: "an inner call is cancelled", inner: status.Error(codes.Canceled, "context canceled")},
		{name: "an inner call reaches no server", inner: status.Error(codes.Unavailable, "connection refused")},
		{name: "the client ends the stream", received: io.EOF},
		{name: "the message is too large", received: status.Error(codes.ResourceExhausted, "received message larger than max")},
		{name: "the request is denied", received: denied},
		{name: "this replica stops", cause: rpcerror.ShuttingDown()},
		{name: "the caller is denied", cause: denied},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := f.server.Receipts().LostStreams
			s := f.openStreamAs(t, unchecked())
			s.register(holders(0, 1)...)
			if got := f.server.Receipts().Streams; got != 1 {
				t.Errorf("%d streams are open, want 1", got)
			}
			switch {
			case c.cause != nil:
				s.cancel(c.cause)
			case c.received != nil:
				s.failure <- c.received
			default:
				if c.inner != nil {
					sessions.failure <- c.inner
				}
				s.requests <- &leasev1.StreamHeartbeatsRequest{Sequence: s.sequence + 1, Registrations: registrations(holders(0, 1))}
				if c.response != nil {
					s.failure <- c.response
				}
			}
			if err := <-s.ended; c.inner != nil && !errors.Is(err, c.inner) || c.response != nil && !errors.Is(err, c.response) {
				t.Errorf("the stream ended with %v", err)
			}
			if got := f.server.Receipts(); got.Streams != 0 || got.LostStreams-before != c.lost {
				t.Errorf("%d open and %d lost streams, want none open and %d lost", got.Streams, got.LostStreams-before, c.lost)
			}
		})
	}
}
