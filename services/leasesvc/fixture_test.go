package leasesvc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

const patience = 20 * time.Second

// fixture is a running service behind the production interceptor chain.
type fixture struct {
	t         testing.TB
	service   *leasesvc.Service
	client    leasev1.LeaseServiceClient
	health    leasev1.NodeHealthServiceClient
	candidate *termtest.Candidate
	kube      kubernetes.Interface
	registry  *prometheus.Registry
	shards    int
	namespace string // of the class "node"
}

var member = term.Member{ID: "replica-1", Service: leasesvc.ServiceName, GRPCAddress: "here:7601"}

// setup is what a test wants different.
type setup struct {
	config     func(*leasesvc.Config)
	kube       kubernetes.Interface
	leadership leasesvc.Leadership
	loops      []string
}

// newFixture starts a service and waits until it keeps every shard, if nothing else decides that.
func newFixture(t testing.TB, s setup) *fixture {
	t.Helper()
	f := &fixture{t: t, kube: s.kube, registry: prometheus.NewRegistry()}
	if f.kube == nil {
		f.kube = newKube()
	}
	cfg := leasesvc.DefaultConfig()
	if s.config != nil {
		s.config(&cfg)
	}
	f.shards, f.namespace = cfg.Shards, cfg.Classes[0].Namespace
	f.candidate = termtest.NewCandidate(member, cfg.Shards)
	leadership := s.leadership
	if leadership == nil {
		leadership = f.candidate
	}
	var err error
	f.service, err = leasesvc.New(cfg, leasesvc.Deps{
		Member: member, Kube: f.kube, Leadership: leadership, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Metrics: f.registry, LoopSelection: slices.Concat([]string{"*"}, s.loops),
	})
	if err != nil {
		t.Fatal(err)
	}
	f.run()
	connection := testkit.Serve(t, f.service.Register, leasesvc.Unvalidated()...)
	f.client, f.health = leasev1.NewLeaseServiceClient(connection), leasev1.NewNodeHealthServiceClient(connection)
	if s.leadership == nil {
		f.awaitLeading()
	}
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

// awaitShard waits until a lease of the shard that nobody has is refused for the reason.
func (f *fixture) awaitShard(number int, want rpcerror.Reason) {
	f.t.Helper()
	name := f.nameIn(number, "nobody")
	f.eventually(func() error {
		_, err := f.client.GetLease(f.t.Context(), &leasev1.GetLeaseRequest{Name: "namespaces/" + f.namespace + "/leases/" + name})
		if rpcerror.ReasonOf(err) != want {
			return fmt.Errorf("shard %d: %w", number, err)
		}
		return nil
	})
}

// nameIn returns a name with the prefix that is in the shard.
func (f *fixture) nameIn(number int, prefix string) string {
	for i := 0; ; i++ {
		if name := fmt.Sprintf("%s-%d", prefix, i); shard.Of("node", name, f.shards) == number {
			return name
		}
	}
}

func (f *fixture) eventually(condition func() error) {
	f.t.Helper()
	testkit.Eventually(f.t, patience, condition)
}

// newKube is a cluster in memory with the Nodes n1 to n3.
func newKube() kubernetes.Interface {
	return fake.NewClientset(nodeObject("n1"), nodeObject("n2"), nodeObject("n3"))
}

func nodeObject(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name)}}
}

func holder(name, boot string) *leasev1.Holder {
	return &leasev1.Holder{Class: "node", Name: name, BootId: boot}
}

// beat sends one beat of each holder by the unary RPC.
func (f *fixture) beat(sequence uint64, holders ...*leasev1.Holder) []*leasev1.HeartbeatResult {
	f.t.Helper()
	request := &leasev1.HeartbeatRequest{}
	for _, h := range holders {
		request.Beats = append(request.Beats, &leasev1.HeartbeatRequest_Beat{Holder: h, Sequence: sequence})
	}
	response, err := f.client.Heartbeat(f.t.Context(), request)
	if err != nil {
		f.t.Fatal(err)
	}
	return response.Results
}

func (f *fixture) get(name string) *leasev1.Lease {
	f.t.Helper()
	response, err := f.client.GetLease(f.t.Context(), &leasev1.GetLeaseRequest{Name: leaseName(name)})
	if err != nil {
		f.t.Fatal(err)
	}
	return response.Lease
}

func leaseName(name string) string { return "namespaces/kube-node-lease/leases/" + name }

// awaitWrite waits until the Lease object of a holder stands as wanted.
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

// expectError checks code and reason; an empty reason stands for any.
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

// ask sends a message and returns its answer.
func ask(t testing.TB, s stream, request *leasev1.StreamHeartbeatsRequest) *leasev1.StreamHeartbeatsResponse {
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

// askInVain sends a message that ends the stream and returns how it ended. The server may end the stream before the message
// is sent; gRPC then answers Send with io.EOF and tells the status at the next Recv.
func askInVain(t testing.TB, s stream, request *leasev1.StreamHeartbeatsRequest) error {
	t.Helper()
	if err := s.Send(request); err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("send: %v", err)
	}
	return endOfStream(t, s)
}

func endOfStream(t testing.TB, s stream) error {
	t.Helper()
	response, err := s.Recv()
	if err == nil {
		t.Fatalf("answered %v instead of an end", response)
	}
	return err
}
