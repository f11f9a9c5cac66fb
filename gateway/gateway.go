package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/httpapi"
	"github.com/trivet-dev/trivet/gateway/web"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// Deps is what the gateway is given. All of it is required.
type Deps struct {
	// Member is this replica.
	Member term.Member
	// Directory is run by the service.
	Directory Directory
	// Peers is how to dial the replicas: with this process's own certificates.
	Peers   rpcclient.Config
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Ready gets the check "directory".
	Ready *observe.Checks
	// LoopSelection is --loops.
	LoopSelection []string
}

// Service is the gateway.
type Service struct {
	cfg       Config
	logger    *slog.Logger
	directory Directory
	// pool has the connections to ask everybody for its status; peers those on which a call is tried once.
	pool, peers *fanout.Pool
	server      *server
	nodes       *nodeServer
	slices      *sliceServer
	bootstrap   *bootstrapServer
	http        *httpapi.Server
	loops       *loop.Runner
	// httpAddress is where HTTP is served; nil before Run listens.
	httpAddress atomic.Pointer[net.TCPAddr]
}

// New assembles the gateway. It starts nothing, listens on nothing and contacts nobody.
func New(cfg Config, deps Deps) (*Service, error) {
	s := &Service{
		cfg: cfg, logger: deps.Logger, directory: deps.Directory,
		pool: fanout.NewPool(dialer(deps)), peers: fanout.NewPool(dialer(deps, grpc.WithDisableRetry())),
	}
	fan, err := fanout.New(fanout.Config{Pool: s.pool, Timeout: cfg.BackendTimeout, Metrics: deps.Metrics})
	if err != nil {
		return nil, err
	}
	s.server = newServer(deps.Member.Cluster, deps.Directory, fan)
	s.nodes = newNodeServer(deps.Member.Cluster, deps.Directory, s.peers, cfg.BackendTimeout)
	s.slices = newSliceServer(deps.Member.Cluster, deps.Directory, s.peers, cfg.BackendTimeout)
	s.bootstrap = newBootstrapServer(deps.Member.Cluster, deps.Directory, s.peers, cfg.BackendTimeout)
	s.http, err = httpapi.New(httpapi.Config{Register: s.Register, Page: web.Files(), Logger: deps.Logger})
	if err != nil {
		return nil, err
	}
	s.loops, err = loop.NewRunner(loop.Config{
		Loops: s.ownLoops(), Selection: deps.LoopSelection, Logger: deps.Logger, Metrics: deps.Metrics,
	})
	if err != nil {
		return nil, err
	}
	deps.Ready.Add("directory", deps.Directory.Check)
	return s, nil
}

// HTTPAddress is where the page is served, host:port; empty while it is not.
func (s *Service) HTTPAddress() string {
	if address := s.httpAddress.Load(); address != nil {
		return address.String()
	}
	return ""
}

// Register adds GatewayService, NodeService, SliceService and BootstrapService.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	gatewayv1.RegisterGatewayServiceServer(registrar, s.server)
	gatewayv1.RegisterNodeServiceServer(registrar, s.nodes)
	gatewayv1.RegisterSliceServiceServer(registrar, s.slices)
	gatewayv1.RegisterBootstrapServiceServer(registrar, s.bootstrap)
}

// Run finds replicas, serves watches and HTTP until ctx ends, and returns after all of it has stopped. The error is a
// listener that cannot be opened or a part that failed.
func (s *Service) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.directory.Run(ctx) })
	group.Go(func() error { return s.loops.Run(ctx) })
	group.Go(func() error { return s.server.watches.Run(ctx) })
	group.Go(func() error { return s.nodes.run(ctx) })
	group.Go(func() error { return s.slices.run(ctx) })
	group.Go(func() error { return s.bootstrap.run(ctx) })
	if s.cfg.HTTPListen != "" {
		group.Go(func() error { return s.serveHTTP(ctx) })
	}
	err := group.Wait()
	if closeErr := errors.Join(s.pool.Close(), s.peers.Close()); err == nil {
		err = closeErr
	}
	return err
}

// Loops are the service's loops, for the process to show and to judge by.
func (s *Service) Loops() *loop.Runner { return s.loops }

// Counts tells how many replicas are registered and how many connections are kept to them.
func (s *Service) Counts() map[string]int64 {
	return map[string]int64{
		"replicas":    int64(len(s.directory.Members())),
		"connections": int64(s.pool.Connections() + s.peers.Connections()),
	}
}

func (s *Service) serveHTTP(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.cfg.HTTPListen)
	if err != nil {
		return fmt.Errorf("listen on --http-listen=%q (is it taken? another port, or :0 for a free one): %w", s.cfg.HTTPListen, err)
	}
	if address, ok := listener.Addr().(*net.TCPAddr); ok {
		s.httpAddress.Store(address)
		defer s.httpAddress.Store(nil)
	}
	return s.http.Serve(ctx, listener)
}

// connectionsLoop is what --loops calls the gateway's one loop.
const connectionsLoop = "connections"

// ownLoops are the gateway's loops: one, which keeps no connection to a replica that left.
func (s *Service) ownLoops() []loop.Loop {
	return []loop.Loop{{
		Name:  connectionsLoop,
		Doc:   "Closes connections to replicas that are no longer registered.",
		Scope: loop.Always,
		Run:   s.keepConnections,
	}}
}

func (s *Service) keepConnections(ctx context.Context, report loop.Report) error {
	for {
		changed := s.directory.Changed() // before Members, or a change between the two would be missed
		members := s.directory.Members()
		report(errors.Join(s.pool.Keep(members), s.peers.Keep(members)))
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func dialer(deps Deps, extra ...grpc.DialOption) fanout.Dial {
	return func(member term.Member) (*grpc.ClientConn, error) {
		peers := deps.Peers
		peers.ServerName = member.Service // its address may be in no certificate: a pod's is not known beforehand
		return rpcclient.Dial(member.GRPCAddress, peers, deps.Logger, extra...)
	}
}
