package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/httpaccess"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcserver"
)

const (
	// headerTimeout bounds the time of a request header.
	headerTimeout = 5 * time.Second
	// idleTimeout is how long a connection may wait for its next request.
	idleTimeout = time.Minute
	// maxConnections bounds the clients that are served without TLS; others wait to be accepted.
	maxConnections = 1000
	// stopTimeout is how long requests in progress may take after a stop.
	stopTimeout = 5 * time.Second
	// memoryBuffer is the capacity of the in-memory connection.
	memoryBuffer = 256 << 10
	// memoryStreamWindow is how far a watch may be ahead of its HTTP client. Without fixed windows,
	// gRPC takes memory for a fast network. memoryWindow is that of all watches together.
	memoryStreamWindow = 64 << 10
	memoryWindow       = 16 << 20
)

// Config is what a Server serves. All of it is required, except Access, Quota and Audit.
type Config struct {
	// Cluster is the name of the cluster, for paths that have one.
	Cluster string
	// Register adds the gateway's services to the in-memory gRPC server.
	Register func(grpc.ServiceRegistrar)
	// Page holds index.html and the files under assets/.
	Page   fs.FS
	Logger *slog.Logger
	// Ready has the checks of /readyz.
	Ready *observe.Checks
	// Access decides about the requests; nil serves plain HTTP on loopback.
	Access *httpaccess.Access
	// Quota and Audit are those of the gRPC server; nil limits and records nothing.
	Quota *quota.Quota
	Audit *audit.Log
}

// Server serves HTTP. Make it with New and call Serve once.
type Server struct {
	cluster string
	logger  *slog.Logger
	rpc     *rpcserver.Server
	page    *page
	ready   *observe.Checks
	access  *httpaccess.Access
	callers handoff
}

// New returns a Server. It starts nothing. The error is a page that cannot be read.
func New(cfg Config) (*Server, error) {
	page, err := loadPage(cfg.Page)
	if err != nil {
		return nil, err
	}
	rpcConfig := rpcserver.DefaultConfig("127.0.0.1:0") // never listened on
	rpcConfig.Insecure = true                           // the connections stay in the process
	// All requests share one connection, and a combined stream is several of them.
	rpcConfig.MaxConcurrentStreams = maxConnections * maxWatches
	rpcConfig.MaxConnectionAge = 0 // it serves until the process ends
	rpcConfig.DrainTimeout = stopTimeout
	// No metrics: the process's gRPC server has registered them under the same names, and would
	// count each HTTP request, too.
	s := &Server{cluster: cfg.Cluster, logger: cfg.Logger, page: page, ready: cfg.Ready, access: cfg.Access}
	deps := rpcserver.Deps{Logger: cfg.Logger.With("via", "http"), Quota: cfg.Quota, Admitted: true, Audit: cfg.Audit}
	if !cfg.Access.Insecure() {
		deps.Authenticator, deps.Authorizer = &s.callers, cfg.Access.Authorizer()
	}
	if s.rpc, err = rpcserver.New(rpcConfig, deps); err != nil {
		return nil, err
	}
	s.rpc.Register(cfg.Register)
	return s, nil
}

// Serve serves on the listener until ctx ends, and closes it. It fails if it would serve plain HTTP
// beyond loopback. Watches then end with SHUTTING_DOWN, and requests in progress finish.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	memory := bufconn.Listen(memoryBuffer)
	conn, err := grpc.NewClient("passthrough:///gateway", // no retries: REPLICAS_UNREACHABLE is an answer
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)), // responses come from this process
		grpc.WithInitialWindowSize(memoryStreamWindow), grpc.WithInitialConnWindowSize(memoryWindow),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return memory.DialContext(ctx) }))
	if err != nil {
		return errors.Join(fmt.Errorf("connect HTTP to gRPC: %w", err), listener.Close())
	}
	handler, err := s.handler(ctx, conn, listener.Addr())
	if err != nil {
		return errors.Join(err, conn.Close(), listener.Close())
	}
	if s.access.Insecure() {
		listener = netutil.LimitListener(listener, maxConnections)
	}
	listener, err = s.access.Listener(listener, "--http-listen")
	if err != nil {
		return errors.Join(err, conn.Close(), listener.Close())
	}
	s.rpc.SetServing(true)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.rpc.Serve(ctx, memory) })
	group.Go(func() error { return s.serveHTTP(ctx, handler, listener) })
	return errors.Join(group.Wait(), conn.Close())
}

func (s *Server) serveHTTP(ctx context.Context, handler http.Handler, listener net.Listener) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    authn.MaxHeaderBytes,                                   // net/http adds 4 KiB
		ErrorLog:          slog.NewLogLogger(s.logger.Handler(), slog.LevelDebug), // mistakes of clients
	}
	s.logger.Info("serving page and HTTP API", "address", listener.Addr().String(), "tls", !s.access.Insecure())
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		stopped <- shutDown(server)
	}()
	err := server.Serve(listener)
	cancel()
	if errors.Is(err, http.ErrServerClosed) {
		return <-stopped
	}
	return errors.Join(fmt.Errorf("serve HTTP on %s: %w", listener.Addr(), err), <-stopped)
}

func shutDown(server *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return server.Close() // the remaining clients do not read
	}
	return nil
}

func isLoopback(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
