package nodeapi

import (
	"context"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// Config configures a Server. All fields are required. The functions answer from memory.
type Config struct {
	// Service is the name of the service in errors and sources.
	Service string
	// Replica is the ID of this replica.
	Replica string
	// Loop is the name of the loop node-health, and Enabled whether it runs.
	Loop    string
	Enabled bool
	// DryRun reports whether it writes nothing now.
	DryRun  func() bool
	Catalog *class.Catalog
	// Namespace contains the Leases of Nodes.
	Namespace string
	// Excludes reports whether a Node does not count in its zone.
	Excludes func(*corev1.Node) bool
	// Owners returns the owners of all shards.
	Owners     func() api.Owners
	HeldShards HeldShards
	Publisher  Publisher
	// Sessions returns the session controller; nil while its loop does not run.
	Sessions  func() Sessions
	Store     Store
	Evictions Evictions
}

// HeldShards are the shards that this replica holds. *sessioncontroller.HeldShards implements it.
type HeldShards interface {
	Get(shard int) (*sessioncontroller.HeldShard, bool)
}

// Publisher publishes the snapshots of node health. *nodehealthcontroller.Publisher implements it.
type Publisher interface {
	Feed() *nodehealthcontroller.Feed
	TaintHold() nodehealth.Delay
}

// Sessions reads sessions. *sessioncontroller.Controller implements it.
type Sessions interface {
	Get(ctx context.Context, key session.Key, shard int) (lease sessioncontroller.Lease, found bool, err error)
	// GetAll returns those that exist, in no order.
	GetAll(ctx context.Context, keys []session.Key) ([]sessioncontroller.Lease, error)
}

// Store reads what belongs to a Node, from a cache. *nodestore.Store implements it.
type Store interface {
	Pods(node string) []*corev1.Pod
	// Lease returns the zero Lease if there is none.
	Lease(node string) nodehealth.Lease
	Freshness(kinds nodestore.Kinds) []answer.Cache
}

// Evictions reads which pods must leave a Node. *evictioncontroller.Controller implements it.
type Evictions interface {
	// Pending returns false if taint eviction does not run on this replica.
	Pending(node string) (pending []evictioncontroller.PendingEviction, running bool)
}

// watchPause is the shortest time between two steps of a watch. A pass changes many Nodes at once,
// and a zone changes with each of them.
const watchPause = 100 * time.Millisecond

// Server implements the RPCs. Its methods are safe for concurrent use.
type Server struct {
	nodev1.UnimplementedNodeHealthServiceServer

	Config
}

// New returns a Server. It starts nothing.
func New(cfg Config) *Server { return &Server{Config: cfg} }

// Register adds the RPCs to a gRPC server.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	nodev1.RegisterNodeHealthServiceServer(registrar, s)
}

// feed returns what node health publishes, and its last snapshot.
func (s *Server) feed() (*nodehealthcontroller.Feed, *nodehealthcontroller.Snapshot, error) {
	if !s.Enabled {
		return nil, nil, errLoopDisabled
	}
	feed := s.Publisher.Feed()
	if snapshot := feed.Snapshot(); snapshot != nil {
		return feed, snapshot, nil
	}
	return nil, nil, errNotSynced
}

// withFeed returns a context that ends with feed, because of errNotSynced.
func withFeed(ctx context.Context, feed *nodehealthcontroller.Feed) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-feed.Ended():
			cancel(errNotSynced)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
