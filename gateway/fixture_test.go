package gateway_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
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

// longTimeout is the timeout of a replica in tests that are not about timeouts: the machine may be
// busy.
const longTimeout = 5 * time.Second

// directory is a Directory whose members a test sets.
type directory struct {
	mu      sync.Mutex // guards the fields below
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

// fakeService is a service whose shards move between fake replicas. The fake of each service embeds
// it.
type fakeService struct {
	name string

	mu      sync.Mutex // guards the fields below, and those of the fake that embeds it
	holders []string   // id of the replica that holds each shard, or ""
	epochs  []int64    // of each shard
	epoch   int64      // the highest one
	members map[string]term.Member
	changed chan struct{} // closed at the next change
}

func newFakeService(name string, holders ...string) *fakeService {
	f := &fakeService{
		name: name, holders: holders, epoch: 10, epochs: make([]int64, len(holders)), members: map[string]term.Member{},
		changed: make(chan struct{}),
	}
	for shard := range holders {
		f.epoch++
		f.epochs[shard] = f.epoch
	}
	return f
}

// change changes something under the lock and wakes the watches.
func (f *fakeService) change(apply func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	apply()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeService) nextChange() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// move gives a shard to another replica, or to none.
func (f *fakeService) move(shard int, to string) {
	f.change(func() {
		f.epoch++
		f.holders[shard], f.epochs[shard] = to, f.epoch
	})
}

// moveAll gives all shards to a replica, or to none.
func (f *fakeService) moveAll(to string) {
	for shard := range f.holders {
		f.move(shard, to)
	}
}

// epochAt returns the epoch of a shard if the replica holds it, else 0.
func (f *fakeService) epochAt(shard int, replica string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holders[shard] != replica {
		return 0
	}
	return f.epochs[shard]
}

// checkHolder returns NOT_LEADER if another replica holds the shard.
func (f *fakeService) checkHolder(shard int, replica string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holders[shard] != replica {
		return rpcerror.NotLeader(f.name, f.members[f.holders[shard]].GRPCAddress)
	}
	return nil
}

// start runs a replica on loopback until the test ends. It has the real StatusService.
func (f *fakeService) start(t testing.TB, id string, register func(grpc.ServiceRegistrar)) term.Member {
	t.Helper()
	member := serve(t, replica(f.name, id), func(r grpc.ServiceRegistrar) {
		register(r)
		status.New(status.Deps{
			Member: replica(f.name, id), Ready: observe.NewChecks(), Terms: func() []term.ShardStatus { return f.terms(id) },
			Loops: func() []loop.Status { return nil }, Counts: func() map[string]int64 { return nil },
		}).Register(r)
	})
	f.change(func() { f.members[id] = member })
	return member
}

func (f *fakeService) terms(id string) []term.ShardStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []term.ShardStatus
	for shard, holder := range f.holders {
		all = append(all, term.ShardStatus{
			Shard: shard, ReplicaID: holder, Epoch: f.epochs[shard], Here: holder == id, GRPCAddress: f.members[holder].GRPCAddress,
		})
	}
	return all
}

// follow serves a watch: it sends the difference at each change. All watches have the same numbers
// of event types. check ends the watch with its error.
func follow[T comparable](
	ctx context.Context, f *fakeService, check func() error, read func() map[string]T, same func(a, b T) bool,
	send func(kind int32, item T) error,
) error {
	const added, modified, deleted, bookmark = 1, 2, 3, 4
	sent := map[string]T{}
	for first := true; ; first = false {
		changed := f.nextChange() // before read, or a change between the two would be missed
		if err := check(); err != nil {
			return err
		}
		now := read()
		for _, name := range slices.Sorted(maps.Keys(now)) {
			before, known := sent[name]
			if known && same(before, now[name]) {
				continue
			}
			kind := int32(added)
			if known {
				kind = modified
			}
			if err := send(kind, now[name]); err != nil {
				return err
			}
		}
		for _, name := range slices.Sorted(maps.Keys(sent)) {
			if _, exists := now[name]; exists {
				continue
			}
			if err := send(deleted, sent[name]); err != nil {
				return err
			}
		}
		sent = now
		if first {
			var none T
			if err := send(bookmark, none); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// replica returns a member of the test cluster without an address.
func replica(service, id string) term.Member {
	return term.Member{ID: id, Service: service, Cluster: "test", Version: "test", StartTime: time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)}
}

// healthy starts a replica with the real StatusService on the real gRPC server. It holds shard 0.
func healthy(t *testing.T, service, id string) term.Member {
	t.Helper()
	member := replica(service, id)
	return serve(t, member, status.New(status.Deps{
		Member: member,
		Ready:  observe.NewChecks(),
		Terms: func() []term.ShardStatus {
			return []term.ShardStatus{{ReplicaID: id, Epoch: 42, Here: true, Remaining: 4 * time.Second}}
		},
		Loops: func() []loop.Status {
			return []loop.Status{{Name: "writeback", State: loop.Running, LastRun: time.Now(), LastSuccess: time.Now(), Runs: 7}}
		},
		Counts: func() map[string]int64 { return map[string]int64{"leases": 20} },
	}).Register)
}

// hanging starts a replica that does not answer.
func hanging(t *testing.T, service, id string) term.Member {
	t.Helper()
	return serve(t, replica(service, id), func(r grpc.ServiceRegistrar) { statusv1.RegisterStatusServiceServer(r, hangingStatus{}) })
}

type hangingStatus struct {
	statusv1.UnimplementedStatusServiceServer
}

func (hangingStatus) GetStatus(ctx context.Context, _ *statusv1.GetStatusRequest) (*statusv1.GetStatusResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// failing starts a replica that answers with INTERNAL; asked counts the questions.
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
	return nil, rpcerror.New(codes.Internal, "BROKEN", "a defect")
}

// dead returns a replica that is registered although its process is gone.
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

// serve runs a gRPC server on loopback until the test ends, and returns the member with its
// address.
func serve(t testing.TB, member term.Member, register func(grpc.ServiceRegistrar)) term.Member {
	t.Helper()
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.Insecure = true
	server, err := rpcserver.New(cfg, rpcserver.Deps{Logger: discard()})
	if err != nil {
		t.Fatalf("make the server of %s: %v", member.ID, err)
	}
	server.Register(register)
	listener := listen(t)
	member.GRPCAddress = listener.Addr().String()
	background(t, "server of "+member.ID, func(ctx context.Context) error { return server.Serve(ctx, listener) })
	return member
}

// startGateway runs a gateway over the directory until the test ends. It listens for HTTP on
// return.
func startGateway(t testing.TB, members *directory, timeout time.Duration) *gateway.Service {
	t.Helper()
	service := newGateway(t, members, timeout)
	run(t, service)
	return service
}

// run runs a gateway until the test ends or stop is called, which waits for the end. The gateway
// listens for HTTP on return.
func run(t testing.TB, service *gateway.Service) (stop func()) {
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
		Logger:        discard(),
		Metrics:       prometheus.NewRegistry(),
		Ready:         observe.NewChecks(),
		LoopSelection: []string{"*"},
	}
}

// background runs a function until the test ends or stop is called; both wait for it.
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

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
