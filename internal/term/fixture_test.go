package term_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/trivet-dev/trivet/internal/devcluster"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/term"
)

const service = "leasesvc"

// clusterName is one per test, so that tests share an etcd without meeting.
func clusterName(t testing.TB) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(t.Name()))
}

func membersPrefix(t testing.TB) string {
	return term.Prefix(clusterName(t)) + "members/" + service + "/"
}
func termsPrefix(t testing.TB) string        { return term.Prefix(clusterName(t)) + "terms/" + service + "/" }
func termKey(t testing.TB, shard int) string { return fmt.Sprintf("%s%d", termsPrefix(t), shard) }

// wire is what a test does to the connection of one client.
type wire struct {
	frozen   atomic.Bool  // renewals are held back until their contexts end
	dead     atomic.Bool  // nothing is sent any more
	requests atomic.Int64 // messages sent to etcd
}

func (w *wire) unary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if w.dead.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	w.requests.Add(1)
	return invoke(ctx, method, request, reply, conn, options...)
}

func (w *wire) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
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

// dial returns a client of the cluster whose messages pass w. The endpoints replace the cluster's own if given.
func dial(t testing.TB, cluster *devcluster.Cluster, w *wire, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := connect(cluster, w, endpoints...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func connect(cluster *devcluster.Cluster, w *wire, endpoints ...string) (*clientv3.Client, error) {
	var files identity.Files
	files.CAFile, files.CertFile, files.KeyFile = cluster.EtcdFiles()
	tls, err := files.ClientTLS(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
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

// participant is one replica in a test.
type participant struct {
	*term.Candidate
	id     string
	client *clientv3.Client
	wire   *wire
	// leave ends Run as a stopping process does, waits for it and returns what it returned. It may be called again.
	leave func() error
}

// options change the configuration of a participant.
type options func(*term.Config)

func shards(n int) options        { return func(c *term.Config) { c.Shards = n } }
func ttl(d time.Duration) options { return func(c *term.Config) { c.TTL = d } }
func logTo(w io.Writer) options {
	return func(c *term.Config) { c.Logger = slog.New(slog.NewTextHandler(w, nil)) }
}

// newParticipant makes a replica that does not run yet. By default it has one shard and the shortest TTL.
func newParticipant(t testing.TB, id string, client *clientv3.Client, change ...options) *participant {
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
	return &participant{Candidate: candidate, id: id, client: client}
}

// join runs a replica with a client of its own until the test ends.
func join(t testing.TB, cluster *devcluster.Cluster, id string, body term.Body, change ...options) *participant {
	t.Helper()
	w := &wire{}
	p := newParticipant(t, id, dial(t, cluster, w), change...)
	p.wire = w
	p.start(t, body)
	return p
}

func (p *participant) start(t testing.TB, body term.Body) {
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

// revokeLease takes a replica's lease away, as an operator may.
func (p *participant) revokeLease(t testing.TB) {
	t.Helper()
	id, _, ok := p.Session()
	if !ok {
		t.Fatalf("%s has no session to revoke", p.id)
	}
	if _, err := p.client.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// testLog collects a log that several goroutines write.
type testLog struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *testLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// logged is nil once a log contains the text.
func logged(log *testLog, text string) error {
	if all := log.String(); !strings.Contains(all, text) {
		return fmt.Errorf("not logged so far: %q; log:\n%s", text, all)
	}
	return nil
}
