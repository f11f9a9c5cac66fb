package api

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/testkit"
)

// fakePeer is a replica whose answers the test decides.
type fakePeer struct {
	leasev1.UnimplementedLeaseServiceServer

	mu       sync.Mutex // guards the fields below
	requests []*leasev1.HeartbeatRequest
	answer   func(*leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error)
}

func (r *fakePeer) Heartbeat(_ context.Context, request *leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, request)
	return r.answer(request)
}

func newPeerConnection(t *testing.T, r *fakePeer) *PeerConnection {
	connection := testkit.Serve(t, func(registrar grpc.ServiceRegistrar) { leasev1.RegisterLeaseServiceServer(registrar, r) })
	return NewPeerConnection(connection, "replica-1")
}

func agedBeat(name string, age time.Duration) AgedBeat {
	return AgedBeat{Beat: Beat{Class: "node", Name: name, Boot: "b", Sequence: 7}, Age: age}
}

func TestPeerConnection_SendsBeatsAndCountsRefusals(t *testing.T) {
	r := &fakePeer{answer: func(request *leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
		response := &leasev1.HeartbeatResponse{}
		for i := range request.Beats {
			result := &leasev1.HeartbeatResult{Result: &leasev1.HeartbeatResult_Grant{Grant: &leasev1.Grant{Epoch: 1}}}
			if i == 1 {
				result.Result = &leasev1.HeartbeatResult_Refusal{Refusal: &leasev1.Refusal{Reason: "NOT_LEADER"}}
			}
			response.Results = append(response.Results, result)
		}
		return response, nil
	}}
	refused, err := newPeerConnection(t, r).Send(t.Context(), []AgedBeat{agedBeat("n1", 0), agedBeat("n2", 1500*time.Millisecond)})
	if err != nil || refused != 1 {
		t.Errorf("%d refused, error %v; want 1", refused, err)
	}
	beat := func(name string, age time.Duration) *leasev1.HeartbeatRequest_Beat {
		return &leasev1.HeartbeatRequest_Beat{
			Holder: &leasev1.Holder{Class: "node", Name: name, BootId: "b"}, Sequence: 7, Age: durationpb.New(age),
		}
	}
	want := []*leasev1.HeartbeatRequest{{
		ForwardedBy: "replica-1", Beats: []*leasev1.HeartbeatRequest_Beat{beat("n1", 0), beat("n2", 1500*time.Millisecond)},
	}}
	if diff := cmp.Diff(want, r.requests, protocmp.Transform()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// A thousand beats with the longest texts fit into the largest message that a server accepts.
func TestPeerConnection_SendsTheLargestBatch(t *testing.T) {
	r := &fakePeer{answer: func(request *leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
		return &leasev1.HeartbeatResponse{Results: make([]*leasev1.HeartbeatResult, len(request.Beats))}, nil
	}}
	text := strings.Repeat("n", maxNameBytes)
	var beats []AgedBeat
	for range 1000 {
		beats = append(beats, AgedBeat{
			Beat: Beat{Class: text[:maxClassBytes], Name: text, Boot: text[:maxBootBytes], Sequence: 1 << 63},
			Age:  time.Minute - 1,
		})
	}
	if refused, err := newPeerConnection(t, r).Send(t.Context(), beats); err != nil || refused != 1000 {
		t.Errorf("%d refused, error %v; results without a grant are refusals", refused, err)
	}
}

func TestPeerConnection_ReturnsErrors(t *testing.T) {
	r := &fakePeer{answer: func(*leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
		return &leasev1.HeartbeatResponse{}, nil
	}}
	c := newPeerConnection(t, r)
	if _, err := c.Send(t.Context(), []AgedBeat{agedBeat("n1", 0)}); err == nil {
		t.Error("an answer without results was accepted")
	}
	r.mu.Lock()
	r.answer = func(*leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
		return nil, rpcerror.NotLeader("leasesvc", "")
	}
	r.mu.Unlock()
	if _, err := c.Send(t.Context(), []AgedBeat{agedBeat("n1", 0)}); status.Code(err) != codes.Unavailable {
		t.Errorf("error %v, want the peer's", err)
	}
	if _, err := c.Send(t.Context(), []AgedBeat{agedBeat("UPPER", 0)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("error %v, want the interceptor to refuse the beat", err)
	}
}
