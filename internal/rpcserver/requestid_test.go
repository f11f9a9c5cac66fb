package rpcserver_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

const (
	someID  = "6f8fd4c8-22a4-4a5b-8c3f-0d8f0a1b2c3d"
	otherID = "0b7d5a52-91a8-4b0b-9f65-3c1d2e3f4a5b"
)

func release(name, id string) *leasev1.ReleaseLeaseRequest {
	return &leasev1.ReleaseLeaseRequest{Holder: &leasev1.Holder{Class: "node", Name: name, BootId: "boot"}, RequestId: id}
}

// releasing counts the calls that reach the handler; answer gets the number of the call.
func releasing(calls *atomic.Int64, answer func(ctx context.Context, call int64) error) *leases {
	return &leases{release: func(ctx context.Context, _ *leasev1.ReleaseLeaseRequest) (*leasev1.ReleaseLeaseResponse, error) {
		if err := answer(ctx, calls.Add(1)); err != nil {
			return nil, err
		}
		return &leasev1.ReleaseLeaseResponse{}, nil
	}}
}

func fail(code codes.Code, reason rpcerror.Reason) func(context.Context, int64) error {
	return func(context.Context, int64) error { return rpcerror.New(code, reason, "the first answer") }
}

func succeed(context.Context, int64) error { return nil }

func TestServer_RepeatedRequestIDGetsTheFirstAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(context.Context, int64) error
		second *leasev1.ReleaseLeaseRequest
		calls  int64
		code   codes.Code
	}{
		"success":                {succeed, release("node-1", someID), 1, codes.OK},
		"final failure":          {fail(codes.NotFound, "LEASE_NOT_FOUND"), release("node-1", someID), 1, codes.NotFound},
		"other content":          {succeed, release("node-2", someID), 1, codes.InvalidArgument},
		"other id":               {succeed, release("node-1", otherID), 2, codes.OK},
		"no id":                  {succeed, release("node-1", ""), 2, codes.OK},
		"unavailable":            {fail(codes.Unavailable, "BUSY"), release("node-1", someID), 2, codes.Unavailable},
		"aborted":                {fail(codes.Aborted, "CONFLICT"), release("node-1", someID), 2, codes.Aborted},
		"deadline":               {func(context.Context, int64) error { return context.DeadlineExceeded }, release("node-1", someID), 2, codes.DeadlineExceeded},
		"not the leader":         {fail(codes.FailedPrecondition, rpcerror.NotLeaderReason), release("node-1", someID), 2, codes.FailedPrecondition},
		"defect":                 {func(context.Context, int64) error { return errors.New("boom") }, release("node-1", someID), 2, codes.Internal},
		"panic":                  {func(context.Context, int64) error { panic("boom") }, release("node-1", someID), 2, codes.Internal},
		"failed precondition":    {fail(codes.FailedPrecondition, "PLAN_EXPIRED"), release("node-1", someID), 1, codes.FailedPrecondition},
		"rate limited the first": {fail(codes.ResourceExhausted, "BUSY"), release("node-1", someID), 2, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int64
			r := start(t, setup{service: releasing(&calls, c.answer)})
			first := release("node-1", someID)
			if name == "no id" {
				first.RequestId = ""
			}
			_, before := r.heartbeats.ReleaseLease(t.Context(), first)
			_, err := r.heartbeats.ReleaseLease(t.Context(), c.second)
			if got := calls.Load(); got != c.calls || status.Code(err) != c.code {
				t.Errorf("second call: %v after %d calls of the handler, want %v after %d", err, got, c.code, c.calls)
			}
			if name == "other content" && rpcerror.ReasonOf(err) != rpcerror.RequestIDReusedReason {
				t.Errorf("reason %q, want REQUEST_ID_REUSED", rpcerror.ReasonOf(err))
			}
			if name == "final failure" && err.Error() != before.Error() {
				t.Errorf("second call: %v, want the first answer %v", err, before)
			}
		})
	}
}

func TestServer_ValidateOnlyIsNotKept(t *testing.T) {
	var calls atomic.Int64
	r := start(t, setup{service: releasing(&calls, succeed)})
	plan := release("node-1", someID)
	plan.ValidateOnly = true
	for _, request := range []*leasev1.ReleaseLeaseRequest{plan, plan, release("node-1", someID), plan, release("node-1", someID)} {
		if _, err := r.heartbeats.ReleaseLease(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	if got := calls.Load(); got != 4 {
		t.Errorf("%d calls of the handler, want 4: three with validate_only and one without", got)
	}
}

func TestServer_ConcurrentRequestsWaitForTheFirst(t *testing.T) {
	var calls atomic.Int64
	running, finish := make(chan struct{}), make(chan struct{})
	r := start(t, setup{service: releasing(&calls, func(_ context.Context, call int64) error {
		if call == 1 {
			close(running)
			<-finish
			return rpcerror.New(codes.Unavailable, "BUSY", "try again")
		}
		return nil
	})})
	var others sync.WaitGroup
	var failures atomic.Int64
	call := func() {
		if _, err := r.heartbeats.ReleaseLease(t.Context(), release("node-1", someID)); err != nil {
			failures.Add(1)
		}
	}
	others.Go(call)
	<-running
	for range 10 {
		others.Go(call)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.heartbeats.ReleaseLease(ended, release("node-1", someID)); status.Code(err) != codes.Canceled {
		t.Errorf("a call that waits and is cancelled: %v, want %v", err, codes.Canceled)
	}
	if _, err := r.heartbeats.ReleaseLease(t.Context(), release("node-2", someID)); rpcerror.ReasonOf(err) != rpcerror.RequestIDReusedReason {
		t.Errorf("other content while the first call runs: %v, want REQUEST_ID_REUSED", err)
	}
	if got := calls.Load(); got != 1 {
		t.Errorf("%d calls of the handler while the first runs, want 1", got)
	}
	close(finish)
	others.Wait()
	if calls.Load() != 2 || failures.Load() != 1 {
		t.Errorf("%d calls of the handler and %d failures, want 2 and 1: the first fails, one waiting call tries again", calls.Load(), failures.Load())
	}
}

func TestServer_CallersDoNotShareAnswers(t *testing.T) {
	authority := identitytest.NewAuthority(t, "ca")
	var calls atomic.Int64
	r := start(t, setup{service: releasing(&calls, succeed), change: func(c *rpcserver.Config) {
		c.Insecure, c.TLS = false, authority.Files(t, "memory", authority)
	}})
	alice, again, bob := authority.Files(t, "alice", authority), authority.Files(t, "alice", authority), authority.Files(t, "bob", authority)
	for i, c := range []struct {
		files identity.Files
		calls int64
	}{{alice, 1}, {again, 1}, {bob, 2}} {
		if _, err := dialTLS(t, r, c.files).ReleaseLease(t.Context(), release("node-1", someID)); err != nil {
			t.Fatal(err)
		}
		if got := calls.Load(); got != c.calls {
			t.Errorf("after call %d: %d calls of the handler, want %d", i+1, got, c.calls)
		}
	}
}

func dialTLS(t *testing.T, r *running, files identity.Files) leasev1.HeartbeatServiceClient {
	t.Helper()
	configIdentity, err := files.Client(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	config := configIdentity.TLS()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return leasev1.NewHeartbeatServiceClient(conn)
}
