package rpcclient_test

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// leases answers GetLease, ListLeases and WatchLeases with what a test says, and counts attempts.
type leases struct {
	leasev1.UnimplementedLeaseServiceServer
	get      func(ctx context.Context, attempt int64) error
	list     func() *leasev1.ListLeasesResponse
	watch    func() error
	attempts atomic.Int64
}

func (l *leases) GetLease(ctx context.Context, _ *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	if err := l.get(ctx, l.attempts.Add(1)); err != nil {
		return nil, err
	}
	return &leasev1.GetLeaseResponse{}, nil
}

func (l *leases) ListLeases(context.Context, *leasev1.ListLeasesRequest) (*leasev1.ListLeasesResponse, error) {
	return l.list(), nil
}

func (l *leases) WatchLeases(*leasev1.WatchLeasesRequest, grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	l.attempts.Add(1)
	return l.watch()
}

// connected is a production client connected over memory to a production server.
type connected struct {
	leasev1.LeaseServiceClient
	conn  *grpc.ClientConn
	dials atomic.Int64
}

func connect(t *testing.T, service *leases, serverCfg rpcserver.Config, clientCfg rpcclient.Config) *connected {
	t.Helper()
	// The address in the target is what the server's certificate is checked against.
	return connectAs(t, "passthrough:///127.0.0.1:7601", service, serverCfg, clientCfg)
}

func connectAs(t *testing.T, target string, service *leases, serverCfg rpcserver.Config, clientCfg rpcclient.Config) *connected {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	deps := rpcserver.Deps{Logger: logger}
	if !serverCfg.Insecure {
		deps.Authenticator, deps.Authorizer = authn.New(authn.Config{}), authz.New(nil)
	}
	server, err := rpcserver.New(serverCfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	server.Register(func(r grpc.ServiceRegistrar) { leasev1.RegisterLeaseServiceServer(r, service) })
	listener := bufconn.Listen(64 << 10)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve() = %v, want nil", err)
		}
	})
	c := &connected{}
	c.conn, err = rpcclient.Dial(target, clientCfg, logger,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c.dials.Add(1)
			return listener.DialContext(ctx)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	c.LeaseServiceClient = leasev1.NewLeaseServiceClient(c.conn)
	return c
}

func plain(t *testing.T, service *leases) *connected {
	t.Helper()
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.Insecure = true
	return connect(t, service, cfg, rpcclient.Config{Insecure: true})
}

func request() *leasev1.GetLeaseRequest {
	return &leasev1.GetLeaseRequest{Name: "namespaces/kube-node-lease/leases/node-1"}
}
