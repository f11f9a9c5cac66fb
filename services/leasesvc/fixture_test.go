package leasesvc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const patience = time.Minute

// fixture is a running service behind the production interceptors.
type fixture struct {
	t         testing.TB
	service   *leasesvc.Service
	client    leasev1.HeartbeatServiceClient
	leases    leasev1.LeaseServiceClient
	health    nodev1.NodeHealthServiceClient
	kube      kubernetes.Interface
	registry  *prometheus.Registry
	shards    int
	namespace string // of the class "node"
	// candidate holds all shards, unless the test has a leadership.
	candidate  *termtest.Candidate
	leadership *fakeLeadership
}

var member = term.Member{ID: "replica-1", Service: leasesvc.ServiceName, GRPCAddress: "here:7601"}

// setup is what a test changes in its fixture.
type setup struct {
	config     func(*leasesvc.Config)
	kube       kubernetes.Interface // nil for a fake with the Nodes n1 to n3
	leadership *fakeLeadership
	loops      []string // selected in addition to the default ones
	etcd       clientv3.KV
	shadow     *shadow.Trackers // nil for no dry run
}

// newFixture starts a service. Without a leadership, it waits until the service holds all shards.
func newFixture(t testing.TB, s setup) *fixture {
	t.Helper()
	f := &fixture{t: t, kube: s.kube, leadership: s.leadership, registry: prometheus.NewRegistry()}
	if f.kube == nil {
		f.kube = newKube()
	}
	cfg := leasesvc.DefaultConfig()
	cfg.FillTime = time.Nanosecond
	if s.config != nil {
		s.config(&cfg)
	}
	f.shards, f.namespace = cfg.Shards, cfg.Classes[0].Namespace
	f.candidate = termtest.NewCandidate(member, cfg.Shards)
	var leadership leasesvc.Leadership = f.candidate
	if s.leadership != nil {
		leadership = s.leadership
	}
	var err error
	f.service, err = leasesvc.New(cfg, leasesvc.Deps{
		Member: member, Kube: f.kube, Leadership: leadership, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Metrics: f.registry, LoopSelection: slices.Concat([]string{"*"}, s.loops), Etcd: s.etcd,
		Shadow: s.shadow,
	})
	if err != nil {
		t.Fatal(err)
	}
	f.run()
	connection := testkit.Serve(t, f.service.Register, leasesvc.Unvalidated()...)
	f.client, f.health = leasev1.NewHeartbeatServiceClient(connection), nodev1.NewNodeHealthServiceClient(connection)
	f.leases = leasev1.NewLeaseServiceClient(connection)
	if s.leadership == nil {
		f.awaitLeading()
	}
	return f
}

// newShardFixture starts a service of four shards. It holds shard 0 at epoch 10 and shard 1 at
// epoch 11. The replica there:7601 holds shard 2, and no replica holds shard 3.
func newShardFixture(t testing.TB, s setup) *fixture {
	t.Helper()
	s.leadership, s.config = newFakeLeadership(4), func(c *leasesvc.Config) { c.Shards = 4 }
	f := newFixture(t, s)
	f.leadership.hold(0, 10)
	f.leadership.hold(1, 11)
	f.leadership.release(2, "there:7601")
	f.awaitShard(0, "LEASE_NOT_FOUND")
	f.awaitShard(1, "LEASE_NOT_FOUND")
	return f
}

// run runs the service until the end of the test.
func (f *fixture) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- f.service.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			f.t.Errorf("run: %v", err)
		}
	})
}

func (f *fixture) awaitLeading() {
	f.t.Helper()
	for number := range f.shards {
		f.awaitShard(number, "LEASE_NOT_FOUND")
	}
}

// awaitShard waits until GetLease for an absent holder of the shard fails with the reason.
func (f *fixture) awaitShard(number int, want rpcerror.Reason) {
	f.t.Helper()
	name := f.nameIn(number, "absent")
	f.eventually(func() error {
		_, err := f.leases.GetLease(f.t.Context(), &leasev1.GetLeaseRequest{Name: "namespaces/" + f.namespace + "/leases/" + name})
		if rpcerror.ReasonOf(err) != want {
			return fmt.Errorf("shard %d: %w", number, err)
		}
		return nil
	})
}

// lose moves a shard to another replica, or to none, and waits until its sessions have ended.
func (f *fixture) lose(number int, to string) {
	f.t.Helper()
	f.leadership.release(number, to)
	reason := rpcerror.NotLeaderReason
	if to == "" {
		reason = rpcerror.NoLeaderReason
	}
	f.awaitShard(number, reason)
}

// nameIn returns a holder name in the shard with the prefix.
func (f *fixture) nameIn(number int, prefix string) string {
	return nameInShard(number, f.shards, prefix)
}

func nameInShard(number, shards int, prefix string) string {
	for i := 0; ; i++ {
		if name := fmt.Sprintf("%s-%d", prefix, i); shard.Of("node", name, shards) == number {
			return name
		}
	}
}

// names returns one holder name in each shard.
func (f *fixture) names() []string {
	var names []string
	for number := range f.shards {
		names = append(names, f.nameIn(number, "node"))
	}
	return names
}

func (f *fixture) eventually(condition func() error) {
	f.t.Helper()
	testkit.Eventually(f.t, patience, condition)
}

func (f *fixture) expectCounts(want map[string]int64) {
	f.t.Helper()
	f.eventually(func() error {
		got := f.service.Counts()
		for name, n := range want {
			if got[name] != n {
				return fmt.Errorf("%s is %d, want %d", name, got[name], n)
			}
		}
		return nil
	})
}

// newKube returns a fake with the Nodes n1 to n3.
func newKube() kubernetes.Interface {
	return fake.NewClientset(nodeObject("n1"), nodeObject("n2"), nodeObject("n3"))
}

func nodeObject(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name)}}
}

func holder(name, boot string) *leasev1.Holder {
	return &leasev1.Holder{Class: "node", Name: name, BootId: boot}
}

// beat sends one beat of each holder with the unary RPC.
func (f *fixture) beat(sequence uint64, holders ...*leasev1.Holder) []*leasev1.HeartbeatResult {
	f.t.Helper()
	request := &leasev1.HeartbeatRequest{}
	for _, h := range holders {
		request.Beats = append(request.Beats, &leasev1.Beat{Holder: h, Sequence: sequence})
	}
	response, err := f.client.Heartbeat(f.t.Context(), request)
	if err != nil {
		f.t.Fatal(err)
	}
	return response.Results
}

func (f *fixture) get(name string) *leasev1.Lease {
	f.t.Helper()
	response, err := f.leases.GetLease(f.t.Context(), &leasev1.GetLeaseRequest{Name: leaseName(name)})
	if err != nil {
		f.t.Fatal(err)
	}
	return response.Lease
}

func leaseName(name string) string { return "namespaces/kube-node-lease/leases/" + name }

// awaitWrite waits for the state of a holder's Lease object.
func (f *fixture) awaitWrite(name string, want leasev1.Lease_Write_State) *leasev1.Lease {
	f.t.Helper()
	var lease *leasev1.Lease
	f.eventually(func() error {
		if lease = f.get(name); lease.Write.State != want {
			return fmt.Errorf("write of %s is %v: %s", name, lease.Write.State, lease.Write.LastError)
		}
		return nil
	})
	return lease
}

// expectError checks code and reason.
func expectError(t testing.TB, what string, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || string(rpcerror.ReasonOf(err)) != reason {
		t.Errorf("%s: %v %s (%v), want %v %s", what, status.Code(err), rpcerror.ReasonOf(err), err, code, reason)
	}
}

type stream = grpc.BidiStreamingClient[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]

func (f *fixture) open() stream {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	f.t.Cleanup(cancel)
	s, err := f.client.StreamHeartbeats(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// exchange sends a message and returns its response.
func exchange(t testing.TB, s stream, request *leasev1.StreamHeartbeatsRequest) *leasev1.StreamHeartbeatsResponse {
	t.Helper()
	if err := s.Send(request); err != nil {
		t.Fatalf("send: %v", err)
	}
	response, err := s.Recv()
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	return response
}

// exchangeError sends a message that ends the stream, and returns its error. If the server ends the
// stream before the message is sent, Send returns io.EOF and Recv the status.
func exchangeError(t testing.TB, s stream, request *leasev1.StreamHeartbeatsRequest) error {
	t.Helper()
	if err := s.Send(request); err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("send: %v", err)
	}
	return streamError(t, s)
}

// streamError returns the error with which a stream ends.
func streamError(t testing.TB, s stream) error {
	t.Helper()
	response, err := s.Recv()
	if err == nil {
		t.Fatalf("received %v, want the end of the stream", response)
	}
	return err
}

// fakeLeadership lets a test decide which replica holds a shard.
type fakeLeadership struct {
	mu       sync.Mutex // guards the fields below
	holdings []term.ShardStatus
	ends     map[int]func() // end the terms of this replica
	body     term.Body      // nil until Run
	bodies   sync.WaitGroup
	running  chan struct{} // closed by Run
}

func newFakeLeadership(shards int) *fakeLeadership {
	l := &fakeLeadership{holdings: make([]term.ShardStatus, shards), ends: map[int]func(){}, running: make(chan struct{})}
	for number := range l.holdings {
		l.holdings[number].Shard = number
	}
	return l
}

func (l *fakeLeadership) Run(ctx context.Context, body term.Body) error {
	l.body = body
	close(l.running)
	<-ctx.Done()
	l.mu.Lock()
	for _, end := range l.ends {
		end()
	}
	l.mu.Unlock()
	l.bodies.Wait()
	return nil
}

func (l *fakeLeadership) Status() term.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return term.Status{Shards: slices.Clone(l.holdings)}
}

// hold makes this replica hold the shard.
func (l *fakeLeadership) hold(number int, epoch int64) {
	<-l.running
	t, ctx, end := termtest.NewTerm(number, epoch)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holdings[number] = term.ShardStatus{Shard: number, ReplicaID: member.ID, Epoch: epoch, Here: true, GRPCAddress: member.GRPCAddress}
	l.ends[number] = end
	l.bodies.Go(func() { _ = l.body(ctx, t) })
}

// release makes the replica at an address hold the shard; no replica if it is empty.
func (l *fakeLeadership) release(number int, address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if end := l.ends[number]; end != nil {
		end()
		delete(l.ends, number)
	}
	l.holdings[number] = term.ShardStatus{Shard: number, GRPCAddress: address}
}
