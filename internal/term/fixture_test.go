package term_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(runChild())
	}
	code := m.Run()
	if cluster, err := sharedEtcd(); err == nil {
		if err := cluster.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "stop etcd: %v\n", err)
			code = max(code, 1)
		}
	}
	// After a failed test, leaked goroutines are a consequence and would hide the cause.
	if code == 0 {
		if err := testkit.FindLeak(); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines outlived the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// sharedEtcd is the etcd of all tests that do not stop it. Tests that wait for two seconds and more
// are parallel; the others would only make sessions late. A compaction breaks watches and reads of
// other tests, so a test that compacts this etcd is not parallel.
var sharedEtcd = sync.OnceValues(startEtcd)

func startEtcd() (*devcluster.Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return devcluster.Start(ctx, devcluster.Config{EtcdOnly: true, Logger: slog.New(slog.DiscardHandler)})
}

// etcd returns the shared etcd.
func etcd(t testing.TB) *devcluster.Cluster {
	t.Helper()
	cluster, err := sharedEtcd()
	if err != nil {
		t.Fatalf("start etcd (missing? run `make assets`): %v", err)
	}
	return cluster
}

// ownEtcd returns an etcd that the test may stop, start and compact.
func ownEtcd(t testing.TB) *devcluster.Cluster {
	t.Helper()
	cluster, err := startEtcd()
	if err != nil {
		t.Fatalf("start etcd (missing? run `make assets`): %v", err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Errorf("stop etcd: %v", err)
		}
	})
	return cluster
}

const service = "leasesvc"

// clusterName returns a name for each test, so that tests share an etcd.
func clusterName(t testing.TB) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(t.Name()))
}

func membersPrefix(t testing.TB) string {
	return etcdconn.KeyPrefix(clusterName(t)) + "members/" + service + "/"
}
func termsPrefix(t testing.TB) string {
	return etcdconn.KeyPrefix(clusterName(t)) + "terms/" + service + "/"
}
func termKey(t testing.TB, shard int) string { return fmt.Sprintf("%s%d", termsPrefix(t), shard) }

// faultyConn injects faults into the connection of one client.
type faultyConn struct {
	frozen   atomic.Bool  // renewals wait until their contexts end
	dead     atomic.Bool  // nothing is sent
	requests atomic.Int64 // messages sent to etcd
	leastTTL atomic.Int64 // the least TTL in seconds that etcd grants, if it is longer than etcd's own
}

func (w *faultyConn) unary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if w.dead.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	w.requests.Add(1)
	if grant, ok := request.(*pb.LeaseGrantRequest); ok {
		grant.TTL = max(grant.TTL, w.leastTTL.Load())
	}
	return invoke(ctx, method, request, reply, conn, options...)
}

func (w *faultyConn) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	if w.dead.Load() || w.frozen.Load() && strings.HasSuffix(method, "/LeaseKeepAlive") {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s, err := open(ctx, desc, conn, method, options...)
	if err != nil {
		return nil, err
	}
	return &countedStream{ClientStream: s, requests: &w.requests}, nil
}

type countedStream struct {
	grpc.ClientStream
	requests *atomic.Int64
}

func (s *countedStream) SendMsg(m any) error {
	s.requests.Add(1)
	return s.ClientStream.SendMsg(m)
}

// dial returns a client of the cluster that uses w. Endpoints replace those of the cluster.
func dial(t testing.TB, cluster *devcluster.Cluster, w *faultyConn, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := connect(cluster, w, endpoints...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func connect(cluster *devcluster.Cluster, w *faultyConn, endpoints ...string) (*clientv3.Client, error) {
	var files identity.Files
	files.CAFile, files.CertFile, files.KeyFile = cluster.EtcdFiles()
	tlsIdentity, err := files.Client(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	tls := tlsIdentity.TLS()
	if len(endpoints) == 0 {
		endpoints = cluster.EtcdEndpoints()
	}
	quick := backoff.DefaultConfig
	quick.BaseDelay, quick.MaxDelay = 100*time.Millisecond, time.Second
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: tls, DialTimeout: 2 * time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(w.unary), grpc.WithChainStreamInterceptor(w.stream),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: 2 * time.Second}),
		},
	})
}

// testReplica is a candidate with its own client.
type testReplica struct {
	*term.Candidate
	id     string
	client *clientv3.Client
	conn   *faultyConn
	// leave cancels Run, waits for it and returns its result. It may be called again.
	leave func() error
}

// option changes the configuration of a testReplica.
type option func(*term.Config)

func shards(n int) option        { return func(c *term.Config) { c.Shards = n } }
func ttl(d time.Duration) option { return func(c *term.Config) { c.TTL = d } }
func logTo(w io.Writer) option {
	return func(c *term.Config) { c.Logger = slog.New(slog.NewTextHandler(w, nil)) }
}

// newTestReplica returns a replica that does not run. By default it has one shard and the shortest
// TTL.
func newTestReplica(t testing.TB, id string, client *clientv3.Client, change ...option) *testReplica {
	t.Helper()
	cfg := term.Config{
		Member: term.Member{
			ID: id, Service: service, Cluster: clusterName(t), GRPCAddress: id + ".test:7601", StartTime: time.Now(),
		},
		Shards: 1, TTL: 2 * time.Second, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	candidate, err := term.New(client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &testReplica{Candidate: candidate, id: id, client: client}
}

// join runs a replica with its own client until the test ends.
func join(t testing.TB, cluster *devcluster.Cluster, id string, body term.Body, change ...option) *testReplica {
	t.Helper()
	w := &faultyConn{}
	p := newTestReplica(t, id, dial(t, cluster, w), change...)
	p.conn = w
	p.start(t, body)
	return p
}

func (p *testReplica) start(t testing.TB, body term.Body) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, body) }()
	var left bool
	var result error
	p.leave = func() error {
		cancel()
		if !left {
			result, left = <-done, true
		}
		return result
	}
	t.Cleanup(func() { _ = p.leave() })
}

// revokeLease revokes a replica's lease, as an operator can.
func (p *testReplica) revokeLease(t testing.TB) {
	t.Helper()
	id, _, ok := p.Session()
	if !ok {
		t.Fatalf("%s has no session to revoke", p.id)
	}
	if _, err := p.client.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// logged is nil once a log contains the text.
func logged(log *testkit.LogBuffer, text string) error {
	if all := log.String(); !strings.Contains(all, text) {
		return fmt.Errorf("not logged so far: %q; log:\n%s", text, all)
	}
	return nil
}

func newRelay(t testing.TB, cluster *devcluster.Cluster) *faultproxy.Relay {
	t.Helper()
	return faultproxy.NewRelay(t, strings.TrimPrefix(cluster.EtcdEndpoints()[0], "https://"))
}

func endpointOf(r *faultproxy.Relay) string { return "https://" + r.Addr() }
