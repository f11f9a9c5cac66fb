package gateway_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/testkit"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// patience is how long a replica may take where that is not what a test is about: long, because the machine may be busy.
const patience = 5 * time.Second

// directory is a Directory whose members a test sets.
type directory struct {
	mu      sync.Mutex // guards the rest
	members []term.Member
	failure error
	changed chan struct{}
}

func newDirectory(members ...term.Member) *directory {
	return &directory{members: members, changed: make(chan struct{})}
}

func (d *directory) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (d *directory) Members() []term.Member {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.members)
}

func (d *directory) Check() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}

func (d *directory) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

func (d *directory) set(members ...term.Member) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.members = members
	close(d.changed)
	d.changed = make(chan struct{})
}

// replica is a member of the test cluster, without an address.
func replica(service, id string) term.Member {
	return term.Member{ID: id, Service: service, Cluster: "kitchen", Version: "test", StartTime: time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)}
}

// standing starts a replica with the real StatusService on the real gRPC server, holding shard 0 of its service.
func standing(t *testing.T, service, id string) term.Member {
	t.Helper()
	member := replica(service, id)
	return serve(t, member, status.New(status.Deps{
		Member: member,
		Ready:  observe.NewChecks(),
		Terms: func() []term.Holding {
			return []term.Holding{{ReplicaID: id, Epoch: 42, Here: true, Remaining: 4 * time.Second}}
		},
		Loops: func() []loop.Status {
			return []loop.Status{{Name: "writeback", State: loop.Running, LastRun: time.Now(), LastSuccess: time.Now(), Runs: 7}}
		},
		Counts: func() map[string]int64 { return map[string]int64{"leases": 20} },
	}).Register)
}

// stuck starts a replica that never answers.
func stuck(t *testing.T, service, id string) term.Member {
	t.Helper()
	return serve(t, replica(service, id), func(r grpc.ServiceRegistrar) { statusv1.RegisterStatusServiceServer(r, stuckStatus{}) })
}

type stuckStatus struct {
	statusv1.UnimplementedStatusServiceServer
}

func (stuckStatus) GetStatus(ctx context.Context, _ *statusv1.GetStatusRequest) (*statusv1.GetStatusResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// failing starts a replica that answers at once that it cannot; asked counts how often it was asked.
func failing(t *testing.T, service, id string) (member term.Member, asked *atomic.Int64) {
	t.Helper()
	s := &failingStatus{}
	return serve(t, replica(service, id), func(r grpc.ServiceRegistrar) { statusv1.RegisterStatusServiceServer(r, s) }), &s.asked
}

type failingStatus struct {
	statusv1.UnimplementedStatusServiceServer
	asked atomic.Int64
}

func (s *failingStatus) GetStatus(context.Context, *statusv1.GetStatusRequest) (*statusv1.GetStatusResponse, error) {
	s.asked.Add(1)
	return nil, rpcerror.New(codes.Internal, "BROKEN", "it has a defect")
}

// dead is a replica that is registered while nobody listens at its address any more.
func dead(t *testing.T, service, id string) term.Member {
	t.Helper()
	listener := listen(t)
	member := replica(service, id)
	member.GRPCAddress = listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatalf("close the port of %s: %v", id, err)
	}
	return member
}

// serve runs a gRPC server on loopback for as long as the test, and gives the member its address.
func serve(t testing.TB, member term.Member, register func(grpc.ServiceRegistrar)) term.Member {
	t.Helper()
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.Insecure = true
	server, err := rpcserver.New(cfg, rpcserver.Deps{Logger: quiet()})
	if err != nil {
		t.Fatalf("make the server of %s: %v", member.ID, err)
	}
	server.Register(register)
	listener := listen(t)
	member.GRPCAddress = listener.Addr().String()
	background(t, "server of "+member.ID, func(ctx context.Context) error { return server.Serve(ctx, listener) })
	return member
}

// running starts a gateway over the directory, HTTP included, and returns it once that listens.
func running(t testing.TB, members *directory, timeout time.Duration) *gateway.Service {
	t.Helper()
	service := newGateway(t, members, timeout)
	start(t, service)
	return service
}

// start runs a gateway until the test ends or stop is called, which returns when it has stopped. HTTP is up on return.
func start(t testing.TB, service *gateway.Service) (stop func()) {
	t.Helper()
	stop = background(t, "gateway", service.Run)
	testkit.Eventually(t, 10*time.Second, func() error {
		if service.HTTPAddress() == "" {
			return errors.New("the gateway does not listen for HTTP yet")
		}
		return nil
	})
	return stop
}

func newGateway(t testing.TB, members *directory, timeout time.Duration) *gateway.Service {
	t.Helper()
	service, err := gateway.New(gateway.Config{HTTPListen: "127.0.0.1:0", BackendTimeout: timeout}, deps(members))
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	return service
}

func deps(members *directory) gateway.Deps {
	return gateway.Deps{
		Member:        replica("gateway", "g1"),
		Directory:     members,
		Peers:         rpcclient.Config{Insecure: true},
		Logger:        quiet(),
		Metrics:       prometheus.NewRegistry(),
		Ready:         observe.NewChecks(),
		LoopSelection: []string{"*"},
	}
}

// background runs something until the test ends or stop is called; both wait for it.
func background(t testing.TB, what string, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen on loopback: %v", err)
	}
	return listener
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
