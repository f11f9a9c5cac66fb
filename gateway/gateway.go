package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/api"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/httpapi"
	"github.com/trivet-dev/trivet/gateway/web"
	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/internal/httpaccess"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/term"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// Program is the gateway as a server process. The flags fill cfg, which is read when the service is
// built.
func Program(cfg *Config) process.Program {
	return process.Program{
		Name:     "gateway",
		Short:    "Answers for all Trivet services of a cluster: gRPC, HTTP/JSON and a page.",
		GRPCPort: 7600, AdminPort: 7610,
		Loops:         []string{connectionsLoop},
		RegisterFlags: cfg.RegisterFlags,
		Validate:      cfg.Validate,
		Build: func(deps process.Deps) (process.Service, error) {
			return New(*cfg, Deps{
				Member: deps.Member, Directory: term.NewDirectory(deps.Etcd, deps.Member.Cluster, deps.Logger),
				Peers: deps.Peers, Logger: deps.Logger, Metrics: deps.Metrics, Ready: deps.Ready, LoopSelection: deps.LoopSelection, Access: deps.HTTP, Quota: deps.Quota, Audit: deps.Audit,
			})
		},
	}
}

// Directory has the registered replicas, as *term.Directory finds them in etcd.
type Directory interface {
	api.Directory
	// Run keeps the directory up to date until ctx ends, and returns nil. It is called once.
	Run(ctx context.Context) error
}

// Deps has the dependencies of the gateway. All of them are required, except Access, Quota and
// Audit.
type Deps struct {
	// Member is this replica.
	Member term.Member
	// Directory is run by the service.
	Directory Directory
	// Peers is how to dial the replicas, with this process's own certificates.
	Peers   rpcclient.Config
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Ready gets the check "directory".
	Ready *observe.Checks
	// LoopSelection is --loops.
	LoopSelection []string
	// Access decides about HTTP requests; nil serves plain HTTP on loopback.
	Access *httpaccess.Access
	// Quota and Audit are those of the process; nil limits and records nothing.
	Quota *quota.Quota
	Audit *audit.Log
}

// Service is the gateway.
type Service struct {
	cfg       Config
	directory Directory
	// retrying has the connections for status questions; plain those that never retry.
	retrying, plain *fanout.Pool
	api             *api.Server
	http            *httpapi.Server
	loops           *loop.Runner
	// httpAddress is nil before Run listens.
	httpAddress atomic.Pointer[net.TCPAddr]
}

// New assembles the gateway. It starts nothing, listens on nothing and calls no replica.
func New(cfg Config, deps Deps) (*Service, error) {
	if cfg.HTTPListen != "" {
		if err := deps.Access.Check("--http-listen", cfg.HTTPListen); err != nil {
			return nil, err
		}
	}
	s := &Service{
		cfg: cfg, directory: deps.Directory,
		retrying: fanout.NewPool(dialer(deps)), plain: fanout.NewPool(dialer(deps, grpc.WithDisableRetry())),
	}
	fan, err := fanout.New(s.retrying, cfg.BackendTimeout, deps.Metrics)
	if err != nil {
		return nil, err
	}
	s.api = api.New(api.Config{
		Cluster: deps.Member.Cluster, ReplicaID: deps.Member.ID, Directory: deps.Directory, Fan: fan, Connections: s.plain, Timeout: cfg.BackendTimeout,
	})
	s.http, err = httpapi.New(httpapi.Config{
		Cluster: deps.Member.Cluster, Register: s.registerHTTP, Page: web.Files(), Logger: deps.Logger, Ready: deps.Ready,
		Access: deps.Access, Quota: deps.Quota, Audit: deps.Audit,
	})
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

// Register adds the services that the gateway answers for, except StatusService, which the process
// adds.
func (s *Service) Register(registrar grpc.ServiceRegistrar) { s.api.Register(registrar) }

// ListShards answers StatusService.ListShards for all services.
func (s *Service) ListShards(ctx context.Context, request *statusv1.ListShardsRequest) (*statusv1.ListShardsResponse, error) {
	return s.api.ListShards(ctx, request)
}

// registerHTTP adds the services with HTTP routes: those of Register, and the shards.
func (s *Service) registerHTTP(registrar grpc.ServiceRegistrar) {
	s.Register(registrar)
	statusv1.RegisterStatusServiceServer(registrar, shardServer{service: s})
}

// shardServer is the part of StatusService that has an HTTP route.
type shardServer struct {
	statusv1.UnimplementedStatusServiceServer
	service *Service
}

func (s shardServer) ListShards(ctx context.Context, request *statusv1.ListShardsRequest) (*statusv1.ListShardsResponse, error) {
	return s.service.ListShards(ctx, request)
}

// HTTPAddress returns where the page is served, host:port, or "" while it is not.
func (s *Service) HTTPAddress() string {
	if address := s.httpAddress.Load(); address != nil {
		return address.String()
	}
	return ""
}

// Loops returns the loops of the service.
func (s *Service) Loops() *loop.Runner { return s.loops }

// Counts returns how many replicas are registered, and how many connections to them are open.
func (s *Service) Counts() map[string]int64 {
	return map[string]int64{
		"replicas":    int64(len(s.directory.Members())),
		"connections": int64(s.retrying.Connections() + s.plain.Connections()),
	}
}

// Run finds replicas and serves watches and HTTP until ctx ends. It returns after all of that has
// stopped. The error is a listener that cannot be opened, or a part that failed.
func (s *Service) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.directory.Run(ctx) })
	group.Go(func() error { return s.loops.Run(ctx) })
	group.Go(func() error { return s.api.Run(ctx) })
	if s.cfg.HTTPListen != "" {
		group.Go(func() error { return s.serveHTTP(ctx) })
	}
	err := group.Wait()
	if closeErr := errors.Join(s.retrying.Close(), s.plain.Close()); err == nil {
		err = closeErr
	}
	return err
}

func (s *Service) serveHTTP(ctx context.Context) error {
	listener, err := connlimit.Listen(s.cfg.HTTPListen)
	if err != nil {
		return fmt.Errorf("listen on --http-listen=%q (is the port in use? choose another one, or :0 for any): %w", s.cfg.HTTPListen, err)
	}
	if address, ok := listener.Addr().(*net.TCPAddr); ok {
		s.httpAddress.Store(address)
		defer s.httpAddress.Store(nil)
	}
	return s.http.Serve(ctx, listener)
}

// connectionsLoop is the name of the gateway's loop in --loops.
const connectionsLoop = "connections"

const (
	// connectionsPeriod is the longest time between two passes.
	connectionsPeriod = 10 * time.Second
	// connectionsStall is far above that: a pass closes connections and waits for no peer.
	connectionsStall = time.Minute
)

func (s *Service) ownLoops() []loop.Loop {
	return []loop.Loop{{
		Name:  connectionsLoop,
		Doc:   "Closes connections to replicas that are no longer registered.",
		Scope: loop.Always,
		Stall: connectionsStall,
		Run:   s.dropConnections,
	}}
}

func (s *Service) dropConnections(ctx context.Context, report loop.Report) error {
	ticker := time.NewTicker(connectionsPeriod)
	defer ticker.Stop()
	for {
		changed := s.directory.Changed() // before Members, or a change between the two would be missed
		members := s.directory.Members()
		report(errors.Join(s.retrying.Keep(members), s.plain.Keep(members)))
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticker.C:
		}
	}
}

func dialer(deps Deps, extra ...grpc.DialOption) fanout.Dial {
	return func(member term.Member) (*grpc.ClientConn, error) {
		peers := deps.Peers
		peers.ServerName = member.Service // certificates have the service's name; a pod's address is not known beforehand
		return rpcclient.Dial(member.GRPCAddress, peers, deps.Logger, extra...)
	}
}
