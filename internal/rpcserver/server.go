package rpcserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

const (
	// handshakeTimeout bounds a connection that opens and says nothing.
	handshakeTimeout = 5 * time.Second
	// readBuffer is what every idle TLS connection holds on to; gRPC's default of 32 KiB times ten thousand agents is memory
	// for nothing, since heartbeats are small.
	readBuffer = 4 << 10
	// streamWindow and connectionWindow are what clients may send ahead: a message of the largest size takes a few rounds. As
	// they are given, gRPC does not find them out by a ping for nearly every message, which cost more than a heartbeat.
	streamWindow     = 256 << 10
	connectionWindow = 1 << 20
	// ageGrace is how long calls may go on after their connection was asked to go.
	ageGrace = 30 * time.Second
	// pingTime and pingTimeout find clients that vanished without closing.
	pingTime    = 30 * time.Second
	pingTimeout = 10 * time.Second
	// minPingTime is how often clients may ping. rpcclient pings half as often.
	minPingTime = 5 * time.Second
)

// Deps are what a server uses and does not own.
type Deps struct {
	Logger *slog.Logger
	// Metrics takes the server's collectors; nil for none.
	Metrics prometheus.Registerer
	// Unvalidated are full methods ("/package.Service/Method") whose messages the handler checks itself, because checking
	// them by the rules of the .proto file would cost more than handling them.
	Unvalidated []string
}

// Server is one gRPC server. Make it with [New], [Server.Register] services, then [Server.Serve] once.
type Server struct {
	cfg    Config
	logger *slog.Logger
	grpc   *grpc.Server
	rules  *rules

	// stopping ends when a stop begins, and with it the contexts of streams.
	stopping context.Context
	stop     context.CancelFunc

	health   *health.Server
	services []string    // registered ones, in order; written before Serve, only read after
	serving  sync.Mutex  // makes SetServing all or nothing
	served   atomic.Bool // set by the first Serve
}

// New returns a server with health and reflection registered. It starts nothing and listens on nothing.
//
// Errors: TLS files that cannot be used, and metrics that the registry refuses.
func New(cfg Config, deps Deps) (*Server, error) {
	transport, err := transportCredentials(cfg, deps.Logger)
	if err != nil {
		return nil, err
	}
	metrics, err := newMetrics(deps.Metrics)
	if err != nil {
		return nil, err
	}
	stopping, stop := context.WithCancel(context.Background())
	s := &Server{
		cfg:      cfg,
		logger:   deps.Logger,
		rules:    newRules(deps.Unvalidated),
		stopping: stopping,
		stop:     stop,
		health:   health.NewServer(),
	}
	chain := chain{logger: deps.Logger, metrics: metrics, rules: s.rules, stopping: stopping}
	s.grpc = grpc.NewServer(append(TransportOptions(cfg),
		grpc.Creds(transport),
		grpc.ChainUnaryInterceptor(chain.unary()...),
		grpc.ChainStreamInterceptor(chain.stream()...),
		grpc.UnknownServiceHandler(unknownMethod),
	)...)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.SetServing(false)
	return s, nil
}

// Register calls register with the registrar that services are added to. It must be called before Serve, from one
// goroutine. Registering a service twice ends the process, as gRPC has it.
func (s *Server) Register(register func(grpc.ServiceRegistrar)) {
	register(registrar{server: s})
	s.SetServing(false)
}

// registrar notes the names of services on their way to gRPC, which tells them from health and reflection.
type registrar struct{ server *Server }

func (r registrar) RegisterService(desc *grpc.ServiceDesc, service any) {
	r.server.grpc.RegisterService(desc, service)
	r.server.services = append(r.server.services, desc.ServiceName)
}

// SetServing tells health checks whether the process serves its purpose: for the empty service name and for every
// registered service. Idempotent, safe for concurrent use, and without effect once a stop has begun.
func (s *Server) SetServing(serving bool) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthv1.HealthCheckResponse_SERVING
	}
	// Without the lock two callers could leave some services serving and others not.
	s.serving.Lock()
	defer s.serving.Unlock()
	s.health.SetServingStatus("", status)
	for _, service := range s.services {
		s.health.SetServingStatus(service, status)
	}
}

// Listen opens the address of cfg. The error names the address and the flag.
func Listen(cfg Config) (net.Listener, error) {
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on --listen=%q (is it taken? another port, or :0 for a free one): %w", cfg.Listen, err)
	}
	return listener, nil
}

func transportCredentials(cfg Config, logger *slog.Logger) (credentials.TransportCredentials, error) {
	if cfg.Insecure {
		return insecure.NewCredentials(), nil
	}
	tls, err := cfg.TLS.ServerTLS(logger)
	if err != nil {
		return nil, fmt.Errorf("set up TLS (--tls-cert-file, --tls-key-file, --client-ca-file): %w", err)
	}
	return credentials.NewTLS(tls), nil
}

// TransportOptions are those of a server's options that say how connections are kept and how much they may cost. A bare gRPC
// server with the same ones is what a measurement compares with.
func TransportOptions(cfg Config) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(cfg.MaxRecvBytes),
		grpc.MaxHeaderListSize(uint32(cfg.MaxHeaderBytes)),
		grpc.MaxConcurrentStreams(cfg.MaxConcurrentStreams),
		grpc.ReadBufferSize(readBuffer),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connectionWindow),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             minPingTime,
			PermitWithoutStream: true,
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge:      cfg.MaxConnectionAge,
			MaxConnectionAgeGrace: ageGrace,
			Time:                  pingTime,
			Timeout:               pingTimeout,
		}),
	}
}

// checkExposure refuses to serve without TLS beyond this machine. Validate has checked the address as written; this checks
// what it became, since a name may resolve to anything. In-memory listeners of tests are no TCP address.
func (s *Server) checkExposure(address net.Addr) error {
	tcp, ok := address.(*net.TCPAddr)
	if !s.cfg.Insecure || !ok || tcp.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("serve gRPC without TLS on %s: not a loopback address; give --tls-cert-file, --tls-key-file and --client-ca-file instead of --insecure", address)
}

// cutTimeout is how long handlers get to notice that their calls were cut. One that has not by then ignores its context.
const cutTimeout = time.Second

// Serve answers calls that arrive at l until ctx ends, then stops as the package documentation says and returns nil. It
// blocks, closes l, and returns after its goroutines have, except for handlers that go on although their call was cut: those
// are an error. Other errors: rules that do not compile, a name in Deps.Unvalidated that is no method, serving in the
// clear beyond loopback, a broken listener, and a second Serve.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if err := s.prepare(l.Addr()); err != nil {
		return errors.Join(err, l.Close())
	}
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(l) }()
	select {
	case err := <-served:
		return errors.Join(broken(l, err), s.drain())
	case <-ctx.Done():
		err := s.drain()
		return errors.Join(broken(l, <-served), err)
	}
}

// broken explains why gRPC no longer accepts connections; nil after a stop. A stop that overtakes the start makes gRPC
// complain that it was stopped, which is what happened.
func broken(l net.Listener, err error) error {
	if err == nil || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("serve gRPC on %s: %w", l.Addr(), err)
}

func (s *Server) prepare(address net.Addr) error {
	if s.served.Swap(true) {
		return fmt.Errorf("serve gRPC on %s: this server has served before; make a new one", address)
	}
	if err := s.checkExposure(address); err != nil {
		return err
	}
	return s.rules.compile(s.services)
}

// drain returns when no call is left, or an error when some would not go.
func (s *Server) drain() error {
	// From here on SetServing has no effect, so nobody can call a stopping server serving.
	s.health.Shutdown()
	s.stop()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.grpc.GracefulStop()
	}()
	if closedWithin(drained, s.cfg.DrainTimeout) {
		return nil
	}
	s.logger.Warn("calls did not finish in time and are cut", "drain_timeout", s.cfg.DrainTimeout)
	s.grpc.Stop()
	if closedWithin(drained, cutTimeout) {
		return nil
	}
	return fmt.Errorf("stop gRPC: handlers still run %v after their calls were cut; they ignore their context", cutTimeout)
}

func closedWithin(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
