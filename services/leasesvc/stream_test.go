package leasesvc_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

func register(sequence uint64, holders ...*leasev1.Holder) *leasev1.StreamHeartbeatsRequest {
	request := &leasev1.StreamHeartbeatsRequest{Sequence: sequence}
	for _, h := range holders {
		request.Registrations = append(request.Registrations, &leasev1.Registration{Holder: h})
	}
	return request
}

func beats(sequence uint64, handles ...uint32) *leasev1.StreamHeartbeatsRequest {
	return &leasev1.StreamHeartbeatsRequest{Sequence: sequence, Handles: handles}
}

// grant is the grant of the class "node" at epoch 1.
func grant() *leasev1.Grant {
	return &leasev1.Grant{Epoch: 1, NextInterval: durationpb.New(5 * time.Second), Ttl: durationpb.New(20 * time.Second)}
}

// expectResponse ignores error messages, retry times, and the description of the server. It checks
// the range of first intervals, which have jitter, and then replaces them by the whole interval.
func expectResponse(t *testing.T, want, got *leasev1.StreamHeartbeatsResponse) {
	t.Helper()
	for _, w := range got.GetRegistrationResults() {
		if g := w.GetGrant(); g != nil {
			if next := g.NextInterval.AsDuration(); next < 2500*time.Millisecond || next > 5*time.Second {
				t.Errorf("first interval %v is outside 2.5 to 5 s", next)
			}
			g.NextInterval = durationpb.New(5 * time.Second)
		}
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&leasev1.Rejection{}, "message", "retry_after"),
		protocmp.IgnoreFields(&leasev1.StreamHeartbeatsResponse{}, "server_info", "limits")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func registered(handle uint32) *leasev1.RegistrationResult {
	return &leasev1.RegistrationResult{Handle: handle, Result: &leasev1.RegistrationResult_Grant{Grant: grant()}}
}

func rejected(reason string) *leasev1.RegistrationResult {
	return &leasev1.RegistrationResult{Result: &leasev1.RegistrationResult_Rejection{Rejection: rejection(reason)}}
}

func rejectedHandle(handle uint32, reason string) *leasev1.RejectedHandle {
	return &leasev1.RejectedHandle{Handle: handle, Rejection: rejection(reason)}
}

// rejection returns the rejection for a reason, with its code as in docs/reasons.md.
func rejection(reason string) *leasev1.Rejection {
	return &leasev1.Rejection{Reason: reason, Code: map[string]code.Code{
		"UNKNOWN_CLASS": code.Code_INVALID_ARGUMENT, "SUPERSEDED": code.Code_ABORTED, "TOO_MANY_HOLDERS": code.Code_RESOURCE_EXHAUSTED,
		"LEASE_NOT_FOUND": code.Code_NOT_FOUND, "NOT_LEADER": code.Code_FAILED_PRECONDITION, "NO_LEADER": code.Code_UNAVAILABLE,
	}[reason]}
}

func TestStreamHeartbeats_RegistersAndRenewsManyHolders(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	s := f.open()
	unknown := &leasev1.Holder{Class: "toaster", Name: "n2", BootId: "1"}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 3, RegistrationResults: []*leasev1.RegistrationResult{registered(1), rejected("UNKNOWN_CLASS"), registered(2)},
	}, exchange(t, s, register(3, holder("n1", "1"), unknown, holder("n3", "1"))))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{Sequence: 4, Grant: grant()}, exchange(t, s, beats(4, 2, 1)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 9, Grant: grant(), RegistrationResults: []*leasev1.RegistrationResult{registered(3)},
	}, exchange(t, s, &leasev1.StreamHeartbeatsRequest{Sequence: 9, Registrations: register(9, holder("n2", "1")).Registrations, Handles: []uint32{1}}))
	if lease := f.get("n1"); lease.Sequence != 9 || lease.State != leasev1.Lease_STATE_ALIVE {
		t.Errorf("n1 is %v at sequence %d, want alive at 9", lease.State, lease.Sequence)
	}
	if got := f.service.Counts(); got["leases"] != 3 || got["alive"] != 3 || got["streams"] != 1 {
		t.Errorf("counts %v", got)
	}
}

func TestStreamHeartbeats_FirstIntervalHasJitter(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	first := map[time.Duration]bool{}
	for i := range 8 {
		response := exchange(t, f.open(), register(1, holder(fmt.Sprintf("node-%d", i), "1"), holder("n1", "1")))
		next := response.RegistrationResults[0].GetGrant().NextInterval.AsDuration()
		if next < 2500*time.Millisecond || next > 5*time.Second || next != response.RegistrationResults[1].GetGrant().NextInterval.AsDuration() {
			t.Errorf("welcomes %v", response.RegistrationResults)
		}
		first[next] = true
	}
	if len(first) < 6 {
		t.Errorf("8 streams got %d first intervals", len(first))
	}
}

func TestStreamHeartbeats_ProtocolErrorsEndTheStream(t *testing.T) {
	t.Parallel()
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
	expectError(t, "no registration", exchangeError(t, f.open(), beats(1)), codes.InvalidArgument, "REGISTRATION_REQUIRED")
}

func TestStreamHeartbeats_NewerBootTakesOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	alone, shared := f.open(), f.open()
	exchange(t, alone, register(1, holder("n1", "1")))
	exchange(t, shared, register(1, holder("n2", "1"), holder("n3", "1")))
	f.beat(1, holder("n1", "2"), holder("n2", "2"))

	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 2, Grant: grant(), RejectedHandles: []*leasev1.RejectedHandle{rejectedHandle(1, "SUPERSEDED")},
	}, exchange(t, shared, beats(2, 1, 2)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 3, RegistrationResults: []*leasev1.RegistrationResult{rejected("SUPERSEDED")},
	}, exchange(t, shared, register(3, holder("n2", "1"))))

	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 2, RejectedHandles: []*leasev1.RejectedHandle{rejectedHandle(1, "SUPERSEDED")},
	}, exchange(t, alone, beats(2, 1)))
	expectError(t, "the last holder of a stream superseded", streamError(t, alone), codes.Aborted, "SUPERSEDED")
}

func TestStreamHeartbeats_ReleasedHolderMayRegisterAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	s := f.open()
	exchange(t, s, register(1, holder("n1", "1")))
	if _, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder("n1", "1")}); err != nil {
		t.Fatal(err)
	}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 2, RejectedHandles: []*leasev1.RejectedHandle{rejectedHandle(1, "LEASE_NOT_FOUND")},
	}, exchange(t, s, beats(2, 1)))
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 3, RegistrationResults: []*leasev1.RegistrationResult{registered(2)},
	}, exchange(t, s, register(3, holder("n1", "1"))))
}

func TestStreamHeartbeats_LimitsAreReported(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{config: func(c *leasesvc.Config) { c.MaxSessions, c.MaxRegistrations = 1, 1_000_000 }})
	s := f.open()
	full := exchange(t, s, register(1, holder("n1", "1"), holder("n2", "1")))
	if full.RegistrationResults[1].GetRejection().GetRetryAfter().AsDuration() <= 0 {
		t.Error("TOO_MANY_HOLDERS without retry_after")
	}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{
		Sequence: 1, RegistrationResults: []*leasev1.RegistrationResult{registered(1), rejected("TOO_MANY_HOLDERS")},
	}, full)
	many := make([]*leasev1.Holder, 1000)
	for i := range many {
		many[i] = holder("n1", "1")
	}
	for sequence := uint64(2); sequence < 21; sequence++ {
		exchange(t, s, register(sequence, many...))
	}
	expectError(t, "20,001 registrations", exchangeError(t, s, register(21, many...)), codes.ResourceExhausted, "TOO_MANY_HOLDERS")
	huge := register(1, holder(string(make([]byte, 2<<20)), "1"))
	// gRPC refuses a message that is too large before the service can add a reason.
	expectError(t, "2 MiB", exchangeError(t, f.open(), huge), codes.ResourceExhausted, "")
}

func TestStreamHeartbeats_EarlyClientIsToldToSlowDown(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	f := newFixture(t, setup{})
	s := f.open()
	exchange(t, s, register(1, holder("n1", "1")))
	f.candidate.Lose()
	response, err := s.Recv() // the server sends without a request
	if err != nil {
		t.Fatal(err)
	}
	expectResponse(t, &leasev1.StreamHeartbeatsResponse{Directive: leasev1.StreamHeartbeatsResponse_DIRECTIVE_MOVE}, response)
	expectError(t, "after it", streamError(t, s), codes.Unavailable, "NO_LEADER")
	f.eventually(func() error {
		if n := f.service.Counts()["leases"]; n != 0 {
			return fmt.Errorf("%d sessions remain after the term", n)
		}
		return nil
	})
}

func TestStreamHeartbeats_ServerStopRedirectsTheClient(t *testing.T) {
	t.Parallel()
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
	s, err := leasev1.NewHeartbeatServiceClient(connection).StreamHeartbeats(t.Context())
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
	t.Parallel()
	f := newFixture(t, setup{})
	s := f.open()
	exchange(t, s, register(1, holder("n1", "1")))
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := streamError(t, s); err.Error() != "EOF" {
		t.Errorf("the stream ended with %v, want a clean end", err)
	}
	if lease := f.get("n1"); lease.State != leasev1.Lease_STATE_ALIVE {
		t.Errorf("the session is %v after its stream ended, want alive", lease.State)
	}
}

func TestStreamHeartbeats_FirstResponseDescribesTheServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	s := f.open()
	first := exchange(t, s, register(1, holder("n1", "1")))
	info := &metav1.ServerInfo{Cluster: member.Cluster, ReplicaId: member.ID, Version: identity.Version()}
	limits := &leasev1.StreamLimits{RegistrationsPerMessage: 1000, HandlesPerMessage: 10_000, RegistrationsPerStream: 20_000}
	if diff := cmp.Diff(info, first.ServerInfo, protocmp.Transform()); diff != "" {
		t.Errorf("server (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(limits, first.Limits, protocmp.Transform()); diff != "" {
		t.Errorf("limits of a client without a certificate (-want +got):\n%s", diff)
	}
	if second := exchange(t, s, beats(2, 1)); second.ServerInfo != nil || second.Limits != nil {
		t.Errorf("the second response is %v", second)
	}
	wrong := register(1, holder("n1", "1"))
	wrong.ClientInfo = &metav1.ClientInfo{Cluster: "another"}
	expectError(t, "another cluster", exchangeError(t, f.open(), wrong), codes.FailedPrecondition, "WRONG_CLUSTER")
}

// An agent outlives its kubelet. The lease of the Node expires, and the agent sees it. The test
// runs alone, because a paused process extends the deadlines.
func TestStreamHeartbeats_ALivingAgentDoesNotHideADeadKubelet(t *testing.T) {
	f := newFixture(t, setup{config: func(c *leasesvc.Config) {
		c.Classes[0].HeartbeatInterval, c.Classes[0].RenewInterval = 100*time.Millisecond, 100*time.Millisecond
		c.Classes[0].Grace, c.Classes[0].LeaseDuration = 3*time.Second, 3*time.Second
	}})
	s := f.open()
	exchange(t, s, register(1, holder("n1", "1"), holder("n2", "1")))
	observed, sequence := time.Now(), uint64(1)
	var slowest time.Duration // from taking an age until its response
	f.eventually(func() error {
		sequence++
		sent := time.Now()
		response := exchange(t, s, &leasev1.StreamHeartbeatsRequest{
			Sequence: sequence, Handles: []uint32{2}, Reports: []*leasev1.HandleReport{{Handle: 1, Report: &leasev1.Report{
				ObservedAge: durationpb.New(sent.Sub(observed)),
				Conditions:  []*leasev1.ReportedCondition{{Type: "KubeletHealthy", Status: metav1.Condition_STATUS_FALSE, Reason: "NO_ANSWER"}},
			}}},
		})
		slowest = max(slowest, time.Since(sent))
		if len(response.RejectedHandles) > 0 {
			t.Fatalf("rejected: %v", response.RejectedHandles)
		}
		lease := f.get("n1")
		if lease.State != leasev1.Lease_STATE_EXPIRED || !lease.LastBeatTime.AsTime().After(lease.ExpireTime.AsTime()) {
			return fmt.Errorf("n1 is %v after %v, and its agent was heard at %v", lease.State, time.Since(observed), lease.LastBeatTime.AsTime())
		}
		return nil
	})
	dead, alive := f.get("n1"), f.get("n2")
	if since := dead.ObserveTime.AsTime().Sub(observed); since > slowest+time.Millisecond {
		t.Errorf("the dead kubelet was observed %v later, and an exchange took %v at most", since, slowest)
	}
	want := []*metav1.Condition{{Type: "KubeletHealthy", Status: metav1.Condition_STATUS_FALSE, Reason: "NO_ANSWER"}}
	if diff := cmp.Diff(want, dead.Conditions, protocmp.Transform()); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if alive.State != leasev1.Lease_STATE_ALIVE || !proto.Equal(alive.LastBeatTime, alive.ObserveTime) || alive.Conditions != nil {
		t.Errorf("the other holder of the stream is %v", alive)
	}
}
