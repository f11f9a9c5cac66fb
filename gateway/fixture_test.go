package gateway_test

import (
	"context"
	"errors"
	"fmt"
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
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
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
	// access is nil for replicas without TLS.
	access *accessOfReplicas

	mu      sync.Mutex // guards the fields below, and those of the fake that embeds it
	leaders []string   // id of the replica that leads each shard, or ""
	epochs  []int64    // of each shard
	epoch   int64      // the highest one
	members map[string]term.Member
	changed chan struct{} // closed at the next change
}

func newFakeService(name string, leaders ...string) *fakeService {
	f := &fakeService{
		name: name, leaders: leaders, epoch: 10, epochs: make([]int64, len(leaders)), members: map[string]term.Member{},
		changed: make(chan struct{}),
	}
	for shard := range leaders {
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
		f.leaders[shard], f.epochs[shard] = to, f.epoch
	})
}

// moveAll gives all shards to a replica, or to none.
func (f *fakeService) moveAll(to string) {
	for shard := range f.leaders {
		f.move(shard, to)
	}
}

// epochAt returns the epoch of a shard if the replica holds it, else 0.
func (f *fakeService) epochAt(shard int, replica string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leaders[shard] != replica {
		return 0
	}
	return f.epochs[shard]
}

// checkLeader returns NOT_LEADER if another replica leads the shard, and NO_LEADER if none does.
func (f *fakeService) checkLeader(shard int, replica string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leaders[shard] != replica {
		return rpcerror.NotLeader(f.name, f.members[f.leaders[shard]].GRPCAddress)
	}
	return nil
}

// source describes a replica and the shards that it leads.
func (f *fakeService) source(replica string) *metav1.Source {
	f.mu.Lock()
	defer f.mu.Unlock()
	source := &metav1.Source{Service: f.name, ReplicaId: replica, ReadTime: timestamppb.Now()}
	for shard, leader := range f.leaders {
		if leader == replica {
			source.Shards = append(source.Shards, int32(shard))
			source.Epoch = max(source.Epoch, f.epochs[shard])
		}
	}
	return source
}

func (f *fakeService) sources(replica string) []*metav1.Source {
	return []*metav1.Source{f.source(replica)}
}

// start runs a replica on loopback until the test ends. It has the real StatusService.
func (f *fakeService) start(t testing.TB, id string, register func(grpc.ServiceRegistrar)) term.Member {
	t.Helper()
	cfg, deps := insecureServer()
	if f.access != nil {
		cfg, deps = f.access.server(t, f.name)
	}
	member := serveWith(t, cfg, deps, replica(f.name, id), func(r grpc.ServiceRegistrar) {
		register(r)
		status.New(status.Deps{
			Member: replica(f.name, id), Ready: observe.NewChecks(), Shards: func() []term.ShardStatus { return f.shards(id) },
			Loops: func() []loop.Status { return nil }, Counts: func() map[string]int64 { return nil },
		}).Register(r)
	})
	f.change(func() { f.members[id] = member })
	return member
}

func (f *fakeService) shards(id string) []term.ShardStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []term.ShardStatus
	for shard, leader := range f.leaders {
		all = append(all, term.ShardStatus{
			Shard: shard, ReplicaID: leader, Epoch: f.epochs[shard], Here: leader == id, GRPCAddress: f.members[leader].GRPCAddress,
		})
	}
	return all
}

// item is a message that replicas report.
type item interface {
	comparable
	proto.Message
	GetName() string
}

const (
	added    = metav1.EventType_EVENT_TYPE_ADDED
	modified = metav1.EventType_EVENT_TYPE_MODIFIED
	deleted  = metav1.EventType_EVENT_TYPE_DELETED
	bookmark = metav1.EventType_EVENT_TYPE_BOOKMARK
)

// watch is one call of a watch of a fake replica.
type watch[T item] struct {
	service *fakeService
	replica string
	// check ends the watch with its error; read returns the items that the replica reports.
	check func() error
	read  func() map[string]T
	same  func(a, b T) bool
	// ended returns the last state of an item that is gone.
	ended func(T) T
	send  func(kind metav1.EventType, item T, bookmark *metav1.Bookmark) error
}

// serve sends the difference at each change. Items of a shard that the replica lost are not
// deleted; a bookmark comes without the shard.
func (w watch[T]) serve(ctx context.Context) error {
	sent, led := map[string]T{}, []int32(nil)
	var none T
	for first := true; ; first = false {
		changed := w.service.nextChange() // before read, or a change between the two would be missed
		if err := w.check(); err != nil {
			return err
		}
		source, now := w.service.source(w.replica), w.read()
		for _, name := range slices.Sorted(maps.Keys(now)) {
			before, known := sent[name]
			if known && w.same(before, now[name]) {
				continue
			}
			kind := added
			if known {
				kind = modified
			}
			if err := w.send(kind, now[name], nil); err != nil {
				return err
			}
		}
		for _, name := range slices.Sorted(maps.Keys(sent)) {
			if _, exists := now[name]; exists || !w.leads(sent[name], source) {
				continue
			}
			if err := w.send(deleted, w.last(sent[name]), nil); err != nil {
				return err
			}
		}
		if first || !slices.Equal(led, source.Shards) {
			if err := w.send(bookmark, none, &metav1.Bookmark{InitialEventsEnd: first, Sources: []*metav1.Source{source}}); err != nil {
				return err
			}
		}
		sent, led = now, source.Shards
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leads reports whether the replica still leads the shard of an item; any replica has the items of
// a service without shards.
func (w watch[T]) leads(item T, source *metav1.Source) bool {
	owned, ok := any(item).(interface{ GetOwner() *metav1.Owner })
	if !ok || w.service.name != "leasesvc" {
		return true
	}
	return slices.Contains(source.Shards, owned.GetOwner().GetShard())
}

func (w watch[T]) last(item T) T {
	if w.ended == nil {
		return item
	}
	return w.ended(item)
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
		Shards: func() []term.ShardStatus {
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
	member := replica(service, id)
	member.GRPCAddress = testkit.FreeAddress(t)
	return member
}

// serve runs a gRPC server on loopback until the test ends, and returns the member with its
// address.
func serve(t testing.TB, member term.Member, register func(grpc.ServiceRegistrar)) term.Member {
	t.Helper()
	cfg, deps := insecureServer()
	return serveWith(t, cfg, deps, member, register)
}

func insecureServer() (rpcserver.Config, rpcserver.Deps) {
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.Insecure = true
	return cfg, rpcserver.Deps{Logger: discard()}
}

// serveWith is serve with a configuration and dependencies.
func serveWith(t testing.TB, cfg rpcserver.Config, deps rpcserver.Deps, member term.Member, register func(grpc.ServiceRegistrar)) term.Member {
	t.Helper()
	server, err := rpcserver.New(cfg, deps)
	if err != nil {
		t.Fatalf("make the server of %s: %v", member.ID, err)
	}
	server.Register(register)
	listener := &cutListener{Listener: listen(t)}
	member.GRPCAddress = listener.Addr().String()
	cutListeners.Store(member.GRPCAddress, listener)
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
	testkit.Eventually(t, time.Minute, func() error {
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

func checkReason(t *testing.T, err error, code codes.Code, reason rpcerror.Reason) {
	t.Helper()
	if grpcstatus.Code(err) != code || rpcerror.ReasonOf(err) != reason {
		t.Fatalf("error = %v (reason %q), want %s with reason %s", err, rpcerror.ReasonOf(err), code, reason)
	}
	if details := grpcstatus.Convert(err).Details(); len(details) == 0 {
		t.Error("the error has no details")
	}
}

// missingOf returns missing parts as text.
func missingOf(missing []*metav1.MissingPart) []string {
	var texts []string
	for _, part := range missing {
		texts = append(texts, fmt.Sprintf("%s %s %v", part.ReplicaId, part.Code, part.Shards))
	}
	return texts
}

// cutListeners has the listeners of replicas by address.
var cutListeners sync.Map

// cutListener can close the connections that it accepted.
type cutListener struct {
	net.Listener
	mu    sync.Mutex // guards the fields below
	conns []net.Conn
	dead  bool // closes each new connection
}

func (l *cutListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns = append(l.conns, conn)
		if l.dead {
			_ = conn.Close()
		}
	}
	return conn, err
}

// cut closes all connections to a replica, so that answers are lost; with dead also later ones.
func cut(member term.Member, dead bool) {
	if found, ok := cutListeners.Load(member.GRPCAddress); ok {
		listener := found.(*cutListener)
		listener.mu.Lock()
		defer listener.mu.Unlock()
		listener.dead = dead
		for _, conn := range listener.conns {
			_ = conn.Close() // closed already if the client left
		}
	}
}
