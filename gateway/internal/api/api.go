package api

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	shadowv1 "github.com/trivet-dev/trivet/proto/trivet/shadow/v1"
)

// Directory has the registered replicas. Its methods return at once and are safe for concurrent
// use.
type Directory interface {
	// Members returns the replicas that were known last, ordered by service and id, also while etcd
	// is unreachable. The caller must not change the slice.
	Members() []term.Member
	// Check returns why Members may be out of date, or nil.
	Check() error
	// Changed returns a channel that is closed at the next change of Members.
	Changed() <-chan struct{}
}

// Config is what the handlers need. All of it is required.
type Config struct {
	// Cluster is the name of the cluster, ReplicaID that of this replica of the gateway.
	Cluster, ReplicaID string

	Directory Directory
	// Fan asks all replicas for their status.
	Fan *fanout.Fan
	// Connections must not retry: NOT_LEADER is an answer, and a retry only takes time.
	Connections *fanout.Pool
	// Timeout bounds each call to a replica.
	Timeout time.Duration
}

// Server has the handlers. Make it with New.
type Server struct {
	replicaID string
	cluster   *clusterServer
	services  []*service
	hubs      []*fanin.Hub
	routes    []route
}

// New returns a Server. It starts nothing and calls no replica.
func New(cfg Config) *Server {
	s := &Server{replicaID: cfg.ReplicaID, cluster: newClusterServer(cfg)}
	leases, slices, bootstrap := newService(cfg, "leasesvc"), newService(cfg, "slicesvc"), newService(cfg, "bootstrapsvc")
	s.services = []*service{leases, bootstrap, slices}
	s.routes = s.table(leases, slices, bootstrap, newServices(cfg, "leasesvc", "bootstrapsvc", "slicesvc"))
	return s
}

// Register adds the services, except StatusService; see [Server.ListShards].
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	gatewayv1.RegisterClusterServiceServer(registrar, s.cluster)
	shadowv1.RegisterShadowServiceServer(registrar, shadowServer{server: s})
	for _, route := range s.routes {
		route.register(registrar, s.replicaID)
	}
}

// Run serves the watches until ctx ends. Watches without it wait; unary calls do not need it.
func (s *Server) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.cluster.poller.Run(ctx) })
	group.Go(func() error { return s.cluster.record(ctx) })
	for _, hub := range s.hubs {
		group.Go(func() error { return hub.Run(ctx) })
	}
	return group.Wait()
}
