package leasesvc_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	newleasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1alpha1"

	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

func register(sequence uint64, holders ...*leasev1.Holder) *leasev1.StreamHeartbeatsRequest {
	return &leasev1.StreamHeartbeatsRequest{Sequence: sequence, Holders: holders}
}

func beats(sequence uint64, handles ...uint32) *leasev1.StreamHeartbeatsRequest {
	return &leasev1.StreamHeartbeatsRequest{Sequence: sequence, Handles: handles}
}

// grant is the grant of the class "node" at epoch 1.
func grant() *leasev1.Grant {
	return &leasev1.Grant{Epoch: 1, NextInterval: durationpb.New(5 * time.Second), Ttl: durationpb.New(20 * time.Second)}
}

// expectResponse ignores error messages and retry times. It checks the range of first intervals,
// which have jitter, and then replaces them by the whole interval.
func expectResponse(t *testing.T, want, got *leasev1.StreamHeartbeatsResponse) {
	t.Helper()
	for _, w := range got.GetWelcomes() {
		if g := w.GetGrant(); g != nil {
			if next := g.NextInterval.AsDuration(); next < 2500*time.Millisecond || next > 5*time.Second {
				t.Errorf("first interval %v is outside 2.5 to 5 s", next)
			}
			g.NextInterval = durationpb.New(5 * time.Second)
		}
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&leasev1.Refusal{}, "message", "retry_after")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func registered(handle uint32) *leasev1.Welcome {
	return &leasev1.Welcome{Handle: handle, Result: &leasev1.Welcome_Grant{Grant: grant()}}
}

func rejected(reason string) *leasev1.Welcome {
	return &leasev1.Welcome{Result: &leasev1.Welcome_Refusal{Refusal: &leasev1.Refusal{Reason: reason}}}
}

func refused(handle uint32, reason string) *leasev1.RefusedHandle {
	return &leasev1.RefusedHandle{Handle: handle, Refusal: &leasev1.Refusal{Reason: reason}}
}

func TestStreamHeartbeats_RegistersAndRenewsManyHolders(t *testing.T) {
	f := newFixture(t, setup{})
	s := f.open()
	unknown := &leasev1.Holder{Class: "toaster", Name: "n2", BootId: "1"}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 3, Welcomes: []*leasev1.Welcome{registered(1), rejected("UNKNOWN_CLASS"), registered(2)},
	}, exchange(t, s, register(3, holder("n1", "1"), unknown, holder("n3", "1"))))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{Sequence: 4, Grant: grant()}, exchange(t, s, beats(4, 2, 1)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 9, Grant: grant(), Welcomes: []*leasev1.Welcome{registered(3)},
	}, exchange(t, s, &leasev1.StreamHeartbeatsRequest{Sequence: 9, Holders: []*leasev1.Holder{holder("n2", "1")}, Handles: []uint32{1}}))
	if lease := f.get("n1"); lease.Sequence != 9 || lease.State != newleasev1.Lease_STATE_ALIVE {
		t.Errorf("n1 is %v at sequence %d, want alive at 9", lease.State, lease.Sequence)
	}
	if got := f.service.Counts(); got["sessions"] != 3 || got["alive"] != 3 || got["streams"] != 1 {
		t.Errorf("counts %v", got)
	}
}

func TestStreamHeartbeats_FirstIntervalHasJitter(t *testing.T) {
	f := newFixture(t, setup{})
	first := map[time.Duration]bool{}
	for i := range 8 {
		response := exchange(t, f.open(), register(1, holder(fmt.Sprintf("node-%d", i), "1"), holder("n1", "1")))
		next := response.Welcomes[0].GetGrant().NextInterval.AsDuration()
		if next < 2500*time.Millisecond || next > 5*time.Second || next != response.Welcomes[1].GetGrant().NextInterval.AsDuration() {
			t.Errorf("welcomes %v", response.Welcomes)
		}
		first[next] = true
	}
	if len(first) < 6 {
		t.Errorf("8 streams got %d first intervals", len(first))
	}
}

func TestStreamHeartbeats_ProtocolErrorsEndTheStream(t *testing.T) {
	for name, c := range map[string]struct {
		then   *leasev1.StreamHeartbeatsRequest
		reason string
	}{
		"repeated sequence":     {then: beats(1, 1), reason: "SEQUENCE_NOT_INCREASING"},
		"unknown handle":        {then: beats(2, 2), reason: "UNKNOWN_HANDLE"},
		"handle zero":           {then: beats(2, 0), reason: "UNKNOWN_HANDLE"},
		"sequence zero":         {then: beats(0, 1), reason: "VALIDATION_FAILED"},
		"name is a path":        {then: register(2, holder("../n1", "1")), reason: "VALIDATION_FAILED"},
		"too many in a message": {then: register(2, make([]*leasev1.Holder, 1001)...), reason: "VALIDATION_FAILED"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{})
			s := f.open()
			exchange(t, s, register(1, holder("n1", "1")))
			expectError(t, name, exchangeError(t, s, c.then), codes.InvalidArgument, c.reason)
		})
	}
	f := newFixture(t, setup{})
	expectError(t, "no registration", exchangeError(t, f.open(), beats(1)), codes.InvalidArgument, "HOLDER_EXPECTED")
}

func TestStreamHeartbeats_NewerBootTakesOver(t *testing.T) {
	f := newFixture(t, setup{})
	alone, shared := f.open(), f.open()
	exchange(t, alone, register(1, holder("n1", "1")))
	exchange(t, shared, register(1, holder("n2", "1"), holder("n3", "1")))
	f.beat(1, holder("n1", "2"), holder("n2", "2"))

	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 2, Grant: grant(), RefusedHandles: []*leasev1.RefusedHandle{refused(1, "SUPERSEDED")},
	}, exchange(t, shared, beats(2, 1, 2)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 3, Welcomes: []*leasev1.Welcome{rejected("SUPERSEDED")},
	}, exchange(t, shared, register(3, holder("n2", "1"))))

	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 2, RefusedHandles: []*leasev1.RefusedHandle{refused(1, "SUPERSEDED")},
	}, exchange(t, alone, beats(2, 1)))
	expectError(t, "the last holder of a stream superseded", streamError(t, alone), codes.Aborted, "SUPERSEDED")
}

func TestStreamHeartbeats_ReleasedHolderMayRegisterAgain(t *testing.T) {
	f := newFixture(t, setup{})
	s := f.open()
	exchange(t, s, register(1, holder("n1", "1")))
	if _, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder("n1", "1")}); err != nil {
		t.Fatal(err)
	}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 2, RefusedHandles: []*leasev1.RefusedHandle{refused(1, "UNKNOWN_HANDLE")},
	}, exchange(t, s, beats(2, 1)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 3, Welcomes: []*leasev1.Welcome{registered(2)},
	}, exchange(t, s, register(3, holder("n1", "1"))))
}

func TestStreamHeartbeats_LimitsAreReported(t *testing.T) {
	f := newFixture(t, setup{config: func(c *leasesvc.Config) { c.MaxSessions, c.MaxRegistrations = 1, 1_000_000 }})
	s := f.open()
	full := exchange(t, s, register(1, holder("n1", "1"), holder("n2", "1")))
	if full.Welcomes[1].GetRefusal().GetRetryAfter().AsDuration() <= 0 {
		t.Error("TOO_MANY_HOLDERS without retry_after")
	}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 1, Welcomes: []*leasev1.Welcome{registered(1), rejected("TOO_MANY_HOLDERS")},
	}, full)
	many := make([]*leasev1.Holder, 1000)
	for i := range many {
		many[i] = holder("n1", "1")
	}
	for sequence := uint64(2); sequence < 21; sequence++ {
		exchange(t, s, register(sequence, many...))
	}
	expectError(t, "20,001 registrations", exchangeError(t, s, register(21, many...)), codes.ResourceExhausted, "TOO_MANY_HOLDERS")
	huge := &leasev1.StreamHeartbeatsRequest{Sequence: 1, Holders: []*leasev1.Holder{holder(string(make([]byte, 2<<20)), "1")}}
	// gRPC refuses a message that is too large before the service can add a reason.
	expectError(t, "2 MiB", exchangeError(t, f.open(), huge), codes.ResourceExhausted, "")
}

func TestStreamHeartbeats_EarlyClientIsToldToSlowDown(t *testing.T) {
	f := newFixture(t, setup{})
	s := f.open()
	exchange(t, s, register(1, holder("n1", "1")))
	var got []leasev1.StreamHeartbeatsResponse_Directive
	for sequence := range uint64(5) {
		got = append(got, exchange(t, s, beats(sequence+2, 1)).Directive)
	}
	slow := leasev1.StreamHeartbeatsResponse_DIRECTIVE_SLOW_DOWN
	want := []leasev1.StreamHeartbeatsResponse_Directive{0, 0, 0, slow, slow}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStreamHeartbeats_LostTermRedirectsTheClient(t *testing.T) {
	f := newFixture(t, setup{})
	s := f.open()
	exchange(t, s, register(1, holder("n1", "1")))
	f.candidate.Lose()
	response, err := s.Recv() // the server sends without a request
	if err != nil {
		t.Fatal(err)
	}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{Directive: leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE}, response)
	expectError(t, "after it", streamError(t, s), codes.Unavailable, "NOT_LEADER")
	f.eventually(func() error {
		if n := f.service.Counts()["sessions"]; n != 0 {
			return fmt.Errorf("%d sessions remain after the term", n)
		}
		return nil
	})
}

func TestStreamHeartbeats_ServerStopRedirectsTheClient(t *testing.T) {
	f := newFixture(t, setup{})
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.Insecure = true
	server, err := rpcserver.New(cfg, rpcserver.Deps{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Unvalidated: leasesvc.Unvalidated()})
	if err != nil {
		t.Fatal(err)
	}
	server.Register(f.service.Register)
	listener, err := rpcserver.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	connection, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	s, err := leasev1.NewLeaseServiceClient(connection).StreamHeartbeats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, s, register(1, holder("n1", "1")))

	begin := time.Now()
	stop()
	response, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{Directive: leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE}, response)
	expectError(t, "after it", streamError(t, s), codes.Unavailable, "SHUTTING_DOWN")
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
	if took := time.Since(begin); took > cfg.DrainTimeout/2 {
		t.Errorf("the stream delayed the stop by %v", took)
	}
}

func TestStreamHeartbeats_ClientMayCloseAtAnyTime(t *testing.T) {
	f := newFixture(t, setup{})
	s := f.open()
	exchange(t, s, register(1, holder("n1", "1")))
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := streamError(t, s); err.Error() != "EOF" {
		t.Errorf("the stream ended with %v, want a clean end", err)
	}
	if lease := f.get("n1"); lease.State != newleasev1.Lease_STATE_ALIVE {
		t.Errorf("the session is %v after its stream ended, want alive", lease.State)
	}
}
