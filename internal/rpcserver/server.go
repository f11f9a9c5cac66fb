package rpcserver

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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/internal/quota"
)

const (
	// handshakeTimeout bounds the handshake of a connection.
	handshakeTimeout = 5 * time.Second
	// readBuffer is the memory of each idle TLS connection. gRPC's default of 32 KiB is too much
	// for ten thousand agents with small heartbeats.
	readBuffer = 4 << 10
	// streamWindow and connectionWindow are the flow-control windows. With fixed windows, gRPC
	// sends no ping to estimate them; nearly every message would need one, which costs more than a
	// heartbeat.
	streamWindow     = 256 << 10
	connectionWindow = 1 << 20
	// ageGrace is how long calls may run after the end of MaxConnectionAge.
	ageGrace = 30 * time.Second
	// pingTime and pingTimeout detect clients that vanished without closing.
	pingTime    = 30 * time.Second
	pingTimeout = 10 * time.Second
	// minPingTime is how often clients may ping. rpcclient pings half as often.
	minPingTime = 5 * time.Second
)

// Deps are the dependencies of a server. Logger is required.
type Deps struct {
	Logger *slog.Logger
	// Metrics registers the server's collectors; nil means none.
	Metrics prometheus.Registerer
	// Unvalidated are full methods ("/package.Service/Method") whose handlers validate their
	// messages, because the rules of the .proto file would cost more than the handler.
	Unvalidated []string
	// Authenticator finds the caller of each call; nil with Config.Insecure, where each caller may
	// do everything.
	Authenticator Authenticator
	// Authorizer decides what a caller may do. It is required with an Authenticator.
	Authorizer *authz.Authorizer
	// Holders decides about the methods with the access rule node_binding; nil leaves that to their
	// handlers, and no caller batches.
	Holders HolderAccess
	// Quota limits the calls of each caller; nil admits every call. Without limits for a method,
	// the server does not start.
	Quota *quota.Quota
	// Admitted says that the process calls [Server.Admit] before each call.
	Admitted bool
	// Audit records mutations and denials; nil records nothing.
	Audit *audit.Log
	// Connections limits the connections; nil accepts all.
	Connections *connlimit.Limiter
	// Tracing records the calls; nil records none.
	Tracing stats.Handler
	// Cluster is the name of the cluster, with which [ClusterKey] of a call has to agree.
	Cluster string
}

// Authenticator finds the caller of a call, as *authn.Authenticator does. It is safe for concurrent
// use.
type Authenticator interface {
	Authenticate(ctx context.Context, request authn.Request) (*authn.Caller, error)
}

// Server is a gRPC server. Call [New], then [Server.Register] for each service, then [Server.Serve]
// once.
type Server struct {
	cfg    Config
	logger *slog.Logger
	grpc   *grpc.Server
	rules  *rules
	chain  chain
	quota  *quota.Quota
	// connections is nil without limits.
	connections *connlimit.Limiter

	// compiled is closed once the rules can be used.
	compiled chan struct{}

	// stopping ends when a stop begins, and with it the contexts of streams.
	stopping context.Context
	stop     context.CancelFunc

	health   *health.Server
	services []string    // registered services, in order; constant after Serve was called
	serving  sync.Mutex  // makes SetServing atomic
	served   atomic.Bool // set by the first Serve
}

// New returns a server with health and reflection registered. It starts nothing and does not
// listen. It fails on unusable TLS files and on metrics that the registry refuses.
func New(cfg Config, deps Deps) (*Server, error) {
	if !cfg.Insecure && deps.Authenticator == nil || deps.Authenticator != nil && deps.Authorizer == nil {
		return nil, errors.New("a server with TLS needs an authenticator and an authorizer")
	}
	transport, err := transportCredentials(cfg, deps)
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
		compiled: make(chan struct{}),
		stopping: stopping,
		stop:     stop,
		health:   health.NewServer(),
		quota:    deps.Quota, connections: deps.Connections,
	}
	s.chain = chain{logger: deps.Logger, refusals: adapt(deps.Logger), metrics: metrics, rules: s.rules, answers: newAnswers(), stopping: stopping, cluster: deps.Cluster,
		authenticator: deps.Authenticator, authorizer: deps.Authorizer, holders: deps.Holders, maxRecvBytes: cfg.MaxRecvBytes, quota: deps.Quota, admitted: deps.Admitted, connections: deps.Connections, audit: deps.Audit}
	options := TransportOptions(cfg)
	if deps.Tracing != nil {
		options = append(options, grpc.StatsHandler(deps.Tracing))
	}
	s.grpc = grpc.NewServer(append(options,
		grpc.Creds(transport),
		grpc.ChainUnaryInterceptor(s.chain.unary()...),
		grpc.ChainStreamInterceptor(s.chain.stream()...),
		grpc.UnknownServiceHandler(unknownMethod),
		grpc.ForceServerCodecV2(newCodec()),
	)...)
	healthv1.RegisterHealthServer(unrecorded{s}, s.health)
	// Reflection describes all services of the server.
	reflection.Register(struct {
		grpc.ServiceRegistrar
		reflection.ServiceInfoProvider
	}{unrecorded{s}, s.grpc})
	s.SetServing(false)
	return s, nil
}

// Register calls register with the registrar of the server. Call it before Serve, from one
// goroutine. gRPC ends the process if a service is registered twice.
func (s *Server) Register(register func(grpc.ServiceRegistrar)) {
	register(registrar{server: s})
	s.SetServing(false)
}

// registrar records the names of services, without health and reflection.
type registrar struct{ server *Server }

func (r registrar) RegisterService(desc *grpc.ServiceDesc, service any) {
	unrecorded(r).RegisterService(desc, service)
	r.server.services = append(r.server.services, desc.ServiceName)
}

// unrecorded registers services that are no part of the API: health and reflection.
type unrecorded struct{ server *Server }

func (r unrecorded) RegisterService(desc *grpc.ServiceDesc, service any) {
	r.server.grpc.RegisterService(r.server.chain.identifyBeforeDecoding(desc), service)
}

// SetServing sets the health of the empty service name and of each registered service. It is
// idempotent, safe for concurrent use, and has no effect after a stop has begun.
func (s *Server) SetServing(serving bool) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthv1.HealthCheckResponse_SERVING
	}
	// Without the lock, two callers could leave services in different states.
	s.serving.Lock()
	defer s.serving.Unlock()
	s.health.SetServingStatus("", status)
	for _, service := range s.services {
		s.health.SetServingStatus(service, status)
	}
}

// Listen opens the address of cfg. The error names the address and the flag.
func Listen(cfg Config) (net.Listener, error) {
	listener, err := connlimit.Listen(cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on --listen=%q (is it taken? another port, or :0 for a free one): %w", cfg.Listen, err)
	}
	return listener, nil
}

func transportCredentials(cfg Config, deps Deps) (credentials.TransportCredentials, error) {
	if cfg.Insecure {
		return insecure.NewCredentials(), nil
	}
	server, err := cfg.TLS.Server(deps.Logger)
	if err != nil {
		return nil, fmt.Errorf("set up TLS (--tls-cert-file, --tls-key-file, --client-ca-file): %w", err)
	}
	if err := server.Register(deps.Metrics, "server"); err != nil {
		return nil, fmt.Errorf("metrics of the TLS files: %w", err)
	}
	if deps.Connections == nil {
		return server.Observe(credentials.NewTLS(server.TLS())), nil
	}
	return server.Observe(deps.Connections.Credentials(credentials.NewTLS(deps.Connections.TLS(server.TLS())))), nil
}

// TransportOptions returns the server options for connections and limits. Benchmarks compare with a
// plain gRPC server that has the same options.
func TransportOptions(cfg Config) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(cfg.MaxRecvBytes),
		grpc.MaxHeaderListSize(uint32(max(cfg.MaxHeaderBytes, authn.MaxHeaderBytes))),
		grpc.InTapHandle(markLargeHeaders(cfg.MaxHeaderBytes)),
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

// checkExposure refuses to serve without TLS or without authorization beyond loopback. Validate has
// checked the configured name; this checks the resolved address. In-memory listeners of tests have
// no TCP address.
func (s *Server) checkExposure(address net.Addr) error {
	tcp, ok := address.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() {
		return nil
	}
	switch {
	case s.cfg.Insecure:
		return fmt.Errorf("serve gRPC without TLS on %s: not a loopback address; give --tls-cert-file, --tls-key-file and --client-ca-file instead of --insecure", address)
	case s.cfg.Access.Mode == AlwaysAllowMode:
		return fmt.Errorf("serve gRPC on %s: with --authorization-mode=%s, only a loopback address is served", address, AlwaysAllowMode)
	default:
		return nil
	}
}

// cutTimeout is how long handlers may run after their calls were cancelled.
const cutTimeout = time.Second

// Serve serves calls on l until ctx ends, then stops as the package documentation describes and
// returns nil. It blocks, closes l, and returns after its goroutines have. It fails if a handler
// ignores its cancelled context, if rules do not compile, if a method has no access rule or no
// limits, if Deps.Unvalidated has an unknown method, if it would serve without TLS or authorization
// beyond loopback, if the listener fails, and at a second call.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if err := s.prepare(l.Addr()); err != nil {
		return errors.Join(err, l.Close())
	}
	l = s.limited(l)
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

// broken returns why gRPC no longer accepts connections, or nil after a stop. A stop before the
// start makes gRPC return ErrServerStopped.
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
	if err := s.rules.compile(s.services); err != nil {
		return err
	}
	close(s.compiled)
	return s.quota.Covers(slices.Collect(maps.Keys(s.rules.access)))
}

// limited returns a listener that refuses connections above the limits.
func (s *Server) limited(l net.Listener) net.Listener {
	switch {
	case s.connections == nil:
		return l
	case s.cfg.Insecure:
		return s.connections.Listener(l)
	default:
		return s.connections.TLSListener(l)
	}
}

// drain returns after all calls have ended. It fails if handlers ignore their context.
func (s *Server) drain() error {
	// From here on SetServing has no effect, so a stopping server stays NOT_SERVING.
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
	s.logger.Warn("calls did not finish in time; cancelling them", "drain_timeout", s.cfg.DrainTimeout)
	s.grpc.Stop()
	if closedWithin(drained, cutTimeout) {
		return nil
	}
	return fmt.Errorf("stop gRPC: handlers still run %v after their calls were cancelled; they ignore their context", cutTimeout)
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
