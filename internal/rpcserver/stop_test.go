package rpcserver_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

// gate is a unary handler that blocks until the test releases it.
type gate struct {
	entered chan struct{}
	leave   chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan struct{}), leave: make(chan struct{})} }

// polite blocks until it is released or its call ends.
func (g *gate) polite(ctx context.Context, _ *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	close(g.entered)
	select {
	case <-g.leave:
		return &leasev1.GetLeaseResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// stubborn ignores the end of its call.
func (g *gate) stubborn(context.Context, *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	close(g.entered)
	<-g.leave
	return &leasev1.GetLeaseResponse{}, nil
}

// inBackground calls GetLease in a goroutine. The channel receives its error.
func inBackground(r *running) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := r.client.GetLease(context.Background(), validGet())
		done <- err
	}()
	return done
}

func TestServe_StopLetsRunningCallsFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		r := start(t, setup{service: &leases{get: g.polite}})
		answered := inBackground(r)
		<-g.entered
		time.AfterFunc(9*time.Second, func() { close(g.leave) })
		began := time.Now()
		if err := r.stop(); err != nil {
			t.Errorf("Serve() = %v, want nil", err)
		}
		if took := time.Since(began); took != 9*time.Second {
			t.Errorf("the stop took %v, want the 9 s of the running call", took)
		}
		if err := <-answered; err != nil {
			t.Errorf("the running call got %v, want its answer", err)
		}
		if _, err := r.client.GetLease(t.Context(), validGet()); status.Code(err) != codes.Unavailable {
			t.Errorf("a call after the stop: %v, want %v", err, codes.Unavailable)
		}
	})
}

func TestServe_StopCancelsCallsAtDrainTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		r := start(t, setup{service: &leases{get: g.polite}, change: func(c *rpcserver.Config) { c.DrainTimeout = 3 * time.Second }})
		answered := inBackground(r)
		<-g.entered
		began := time.Now()
		if err := r.stop(); err != nil {
			t.Errorf("Serve() = %v, want nil since the handler went when it was cut", err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the stop took %v, want the drain timeout of 3 s", took)
		}
		if err := <-answered; status.Code(err) != codes.Unavailable {
			t.Errorf("the cut call got %v, want %v", err, codes.Unavailable)
		}
	})
}

func TestServe_HandlerThatIgnoresCancellationIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		listener := bufconn.Listen(64 << 10)
		server := newServer(t, setup{service: &leases{get: g.stubborn}}, rpcserver.Deps{Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- server.Serve(ctx, listener) }()
		answered := inBackground(&running{client: leasev1.NewLeaseServiceClient(dial(t, listener))})
		<-g.entered
		began := time.Now()
		cancel()
		err := <-served
		if err == nil || !strings.Contains(err.Error(), "ignore their context") {
			t.Errorf("Serve() = %v, want an error about handlers that ignore their context", err)
		}
		if took, want := time.Since(began), 11*time.Second; took != want {
			t.Errorf("the stop took %v, want %v: drain timeout and a second of patience", took, want)
		}
		close(g.leave)
		if err := <-answered; status.Code(err) != codes.Unavailable {
			t.Errorf("the cut call got %v, want %v", err, codes.Unavailable)
		}
	})
}

func TestServe_StopEndsWatchesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, setup{service: &leases{watch: func(_ *leasev1.WatchLeasesRequest, s grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
			if err := s.Send(&leasev1.WatchLeasesResponse{}); err != nil {
				return err
			}
			<-s.Context().Done()
			return s.Context().Err()
		}}})
		watch, err := r.client.WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := r.stop(); err != nil {
			t.Errorf("Serve() = %v, want nil", err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the stop waited %v for a watch", took)
		}
		if _, err := watch.Recv(); status.Code(err) != codes.Unavailable || rpcerror.ReasonOf(err) != rpcerror.ShuttingDownReason {
			t.Errorf("the watch ended with %v, want %v with %v", err, codes.Unavailable, rpcerror.ShuttingDownReason)
		}
	})
}

func TestServe_StopEndsHealthWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, setup{service: &leases{}})
		r.server.SetServing(true)
		watch, err := healthv1.NewHealthClient(r.conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if first, err := watch.Recv(); err != nil || first.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Fatalf("first health: %v (%v), want SERVING", first, err)
		}
		began := time.Now()
		if err := r.stop(); err != nil {
			t.Errorf("Serve() = %v, want nil", err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the stop waited %v for a health watch", took)
		}
		// NOT_SERVING may or may not arrive before the end; SERVING must not.
		last, err := watch.Recv()
		if err == nil {
			if last.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
				t.Errorf("health at the stop is %v, want NOT_SERVING", last)
			}
			_, err = watch.Recv()
		}
		if rpcerror.ReasonOf(err) != rpcerror.ShuttingDownReason {
			t.Errorf("the health watch ended with %v, want %v", err, rpcerror.ShuttingDownReason)
		}
	})
}

func TestServe_ReturnsWhenTheListenerBreaks(t *testing.T) {
	listener := bufconn.Listen(1)
	server := newServer(t, setup{}, rpcserver.Deps{Logger: slog.New(slog.DiscardHandler)})
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(t.Context(), listener); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Serve() on a closed listener = %v, want an error that says so", err)
	}
}

func TestServe_StopBeforeTheStartIsNoError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	server := newServer(t, setup{}, rpcserver.Deps{Logger: slog.New(slog.DiscardHandler)})
	if err := server.Serve(ctx, bufconn.Listen(1)); err != nil {
		t.Errorf("Serve() under an ended context = %v, want nil", err)
	}
}

func TestServe_OnceOnly(t *testing.T) {
	r := start(t, setup{})
	if _, err := checkHealth(t, r, ""); err != nil {
		t.Fatal(err)
	}
	if err := r.server.Serve(t.Context(), bufconn.Listen(1)); err == nil {
		t.Error("the second Serve() = nil, want an error")
	}
	if _, err := checkHealth(t, r, ""); err != nil {
		t.Errorf("the first Serve suffered from the second: %v", err)
	}
}

// exposed is a listener whose address is not loopback. It does not listen there.
type exposed struct{ *bufconn.Listener }

func (exposed) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero, Port: 7601} }

func TestServe_PlainTextBeyondLoopbackIsRefused(t *testing.T) {
	server := newServer(t, setup{}, rpcserver.Deps{Logger: slog.New(slog.DiscardHandler)})
	err := server.Serve(t.Context(), exposed{bufconn.Listen(1)})
	if err == nil || !strings.Contains(err.Error(), "0.0.0.0:7601") {
		t.Errorf("Serve() = %v, want an error that names the address", err)
	}
}

func TestServe_WithoutAuthorizationOnlyLoopbackIsServed(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	server := newServer(t, setup{change: func(cfg *rpcserver.Config) {
		cfg.Insecure, cfg.TLS, cfg.Access.Mode = false, authority.Files(t, "server", authority), rpcserver.AlwaysAllowMode
	}}, rpcserver.Deps{Logger: slog.New(slog.DiscardHandler)})
	err := server.Serve(t.Context(), exposed{bufconn.Listen(1)})
	if err == nil || !strings.Contains(err.Error(), "0.0.0.0:7601: with --authorization-mode=AlwaysAllow") {
		t.Errorf("Serve() = %v, want an error that names the address", err)
	}
}

func checkHealth(t *testing.T, r *running, service string) (healthv1.HealthCheckResponse_ServingStatus, error) {
	t.Helper()
	response, err := healthv1.NewHealthClient(r.conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
	return response.GetStatus(), err
}

func TestSetServing_HealthFollowsForEveryService(t *testing.T) {
	r := start(t, setup{service: &leases{}})
	for _, step := range []struct {
		name string
		tell func()
		want healthv1.HealthCheckResponse_ServingStatus
	}{
		{name: "at the start", tell: func() {}, want: healthv1.HealthCheckResponse_NOT_SERVING},
		{name: "when told", tell: func() { r.server.SetServing(true) }, want: healthv1.HealthCheckResponse_SERVING},
		{name: "when told again", tell: func() { r.server.SetServing(true) }, want: healthv1.HealthCheckResponse_SERVING},
		{name: "when told otherwise", tell: func() { r.server.SetServing(false) }, want: healthv1.HealthCheckResponse_NOT_SERVING},
	} {
		step.tell()
		for _, service := range []string{"", "trivet.lease.v1.LeaseService"} {
			if got, err := checkHealth(t, r, service); got != step.want || err != nil {
				t.Errorf("%s, service %q is %v (%v), want %v", step.name, service, got, err, step.want)
			}
		}
	}
}
