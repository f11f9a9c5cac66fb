package rpcserver_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// leases is a LeaseService and a HeartbeatService with handlers of a test. A nil handler panics.
type leases struct {
	leasev1.UnimplementedLeaseServiceServer
	leasev1.UnimplementedHeartbeatServiceServer
	get     func(context.Context, *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error)
	beat    func(context.Context, *leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error)
	watch   func(*leasev1.WatchLeasesRequest, grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error
	release func(context.Context, *leasev1.ReleaseLeaseRequest) (*leasev1.ReleaseLeaseResponse, error)
	stream  func(grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error
}

func (l *leases) GetLease(ctx context.Context, r *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	return l.get(ctx, r)
}

func (l *leases) Heartbeat(ctx context.Context, r *leasev1.HeartbeatRequest) (*leasev1.HeartbeatResponse, error) {
	return l.beat(ctx, r)
}

func (l *leases) ReleaseLease(ctx context.Context, r *leasev1.ReleaseLeaseRequest) (*leasev1.ReleaseLeaseResponse, error) {
	return l.release(ctx, r)
}

func (l *leases) WatchLeases(r *leasev1.WatchLeasesRequest, s grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	return l.watch(r, s)
}

func (l *leases) StreamHeartbeats(s grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
	return l.stream(s)
}

// setup configures the server of a test.
type setup struct {
	service     *leases
	unvalidated []string
	cluster     string
	// authenticator and authorizer default to those of a server with AlwaysAllow, with TLS.
	authenticator rpcserver.Authenticator
	authorizer    *authz.Authorizer
	audit         *audit.Log
	quota         *quota.Quota
	// more registers further services; nil for none.
	more   func(grpc.ServiceRegistrar)
	change func(*rpcserver.Config)
}

// running is a server on an in-memory connection, with its log and metrics.
type running struct {
	server     *rpcserver.Server
	conn       *grpc.ClientConn
	client     leasev1.LeaseServiceClient
	heartbeats leasev1.HeartbeatServiceClient
	listener   *bufconn.Listener
	log        *journal
	metrics    *prometheus.Registry
	// stop begins the stop and returns what Serve returned. It may be called once; the end of the
	// test calls it otherwise.
	stop func() error
}

func start(t testing.TB, with setup) *running {
	t.Helper()
	r := &running{log: &journal{}, metrics: prometheus.NewRegistry(), listener: bufconn.Listen(64 << 10)}
	r.server = newServer(t, with, rpcserver.Deps{
		Logger:      slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics:     r.metrics,
		Unvalidated: with.unvalidated,
		Cluster:     with.cluster,
	})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(ctx, r.listener) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-served
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("Serve() = %v, want nil", err)
		}
	})
	r.conn = dial(t, r.listener)
	r.client = leasev1.NewLeaseServiceClient(r.conn)
	r.heartbeats = leasev1.NewHeartbeatServiceClient(r.conn)
	return r
}

func newServer(t testing.TB, with setup, deps rpcserver.Deps) *rpcserver.Server {
	t.Helper()
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.Insecure = true
	if with.change != nil {
		with.change(&cfg)
	}
	deps.Authenticator, deps.Authorizer, deps.Audit, deps.Quota = with.authenticator, with.authorizer, with.audit, with.quota
	if deps.Authorizer == nil {
		deps.Authorizer = authz.New(nil)
	}
	if deps.Authenticator == nil && !cfg.Insecure {
		deps.Authenticator = authn.New(authn.Config{})
	}
	server, err := rpcserver.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	if with.service != nil {
		server.Register(func(r grpc.ServiceRegistrar) {
			leasev1.RegisterLeaseServiceServer(r, with.service)
			leasev1.RegisterHeartbeatServiceServer(r, with.service)
		})
	}
	if with.more != nil {
		server.Register(with.more)
	}
	return server
}

// dial connects without rpcclient's retries, so that a test sees each response.
func dial(t testing.TB, listener *bufconn.Listener) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///memory",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// journal is a log in JSON.
type journal struct{ testkit.LogBuffer }

// calls returns the lines about calls of method, in order.
func (j *journal) calls(t *testing.T, method string) []map[string]string {
	t.Helper()
	var found []map[string]string
	for line := range strings.Lines(j.String()) {
		var entry map[string]string
		if err := json.Unmarshal([]byte(line), &entry); err == nil && entry["grpc.method"] == method {
			found = append(found, entry)
		}
	}
	return found
}

// counts returns the values of a counter by their labels.
func (r *running) counts(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			found[strings.Join(labels, " ")] = metric.GetCounter().GetValue()
		}
	}
	return found
}

// details returns the details of err's status.
func details(t *testing.T, err error) (found []proto.Message) {
	t.Helper()
	for _, detail := range status.Convert(err).Details() {
		message, ok := detail.(proto.Message)
		if !ok {
			t.Fatalf("detail %v of %v cannot be decoded", detail, err)
		}
		found = append(found, message)
	}
	return found
}

func info(reason string) *errdetails.ErrorInfo {
	return &errdetails.ErrorInfo{Reason: reason, Domain: "trivet.dev"}
}

func validGet() *leasev1.GetLeaseRequest {
	return &leasev1.GetLeaseRequest{Name: "namespaces/kube-node-lease/leases/node-1"}
}
