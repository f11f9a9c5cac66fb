package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// Config configures a Server. All fields are required. The functions answer from memory.
type Config struct {
	// Service is the name of the service in errors.
	Service string
	// Replica is the ID of this replica.
	Replica string
	// Loop is the name of the loop node-health, and Enabled whether it runs.
	Loop    string
	Enabled bool
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
	// Snapshot returns the last snapshot; nil before the first one.
	Snapshot() *nodehealthcontroller.Snapshot
	// Changed returns a channel that is closed with the next change.
	Changed() <-chan struct{}
	Watch(wanted func(*nodehealthcontroller.Node) bool) *nodehealthcontroller.Watcher
	TaintsHeldBy(zone string) string
}

// Sessions reads sessions. *sessioncontroller.Controller implements it.
type Sessions interface {
	Get(ctx context.Context, key session.Key, shard int) (lease sessioncontroller.Lease, found bool, err error)
}

// Store reads what belongs to a Node, from a cache. *nodestore.Store implements it.
type Store interface {
	Pods(node string) []*corev1.Pod
	// Lease returns the zero Lease if there is none.
	Lease(node string) nodehealth.Lease
}

// Evictions reads which pods must leave a Node. *evictioncontroller.Controller implements it.
type Evictions interface {
	// Pending returns false if taint eviction does not run on this replica.
	Pending(node string) (pending []evictioncontroller.PendingEviction, running bool)
}

// Reasons of this API, in addition to those of package rpcerror.
const (
	reasonLoopDisabled   rpcerror.Reason = "LOOP_DISABLED"
	reasonNodeNotFound   rpcerror.Reason = "NODE_NOT_FOUND"
	reasonCacheNotSynced rpcerror.Reason = "CACHE_NOT_SYNCED"
)

// notSyncedRetryAfter is when to ask a replica again that has not listed all Nodes.
const notSyncedRetryAfter = time.Second

var (
	errLoopDisabled = errors.New("the loop does not run on this replica")
	errNotSynced    = errors.New("this replica has not assessed all Nodes yet; ask again in a second")
)

// nodeNotFoundError is a Node that does not exist.
type nodeNotFoundError struct{ name string }

func (e nodeNotFoundError) Error() string { return fmt.Sprintf("no node %q", e.name) }

// Server implements the RPCs. Its methods are safe for concurrent use.
type Server struct {
	leasev1.UnimplementedNodeHealthServiceServer

	Config
}

// New returns a Server. It starts nothing.
func New(cfg Config) *Server { return &Server{Config: cfg} }

// Register adds the RPCs to a gRPC server.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	leasev1.RegisterNodeHealthServiceServer(registrar, s)
}

// GetNodeHealth returns the published status of a Node, with the last beat of its session.
func (s *Server) GetNodeHealth(ctx context.Context, request *leasev1.GetNodeHealthRequest) (*leasev1.GetNodeHealthResponse, error) {
	snapshot, node, err := s.find(request.Name)
	if err != nil {
		return nil, s.statusOf(err)
	}
	nodeStatus := statusOfNode(snapshot, node)
	addLastBeat(&nodeStatus, s.sessionOf(ctx, node))
	return &leasev1.GetNodeHealthResponse{
		Node: nodeHealthOf(snapshot, node, &nodeStatus), Freshness: s.nodeFreshness(node),
	}, nil
}

// ListNodeHealth returns the Nodes of the held shards, ordered by name.
func (s *Server) ListNodeHealth(_ context.Context, request *leasev1.ListNodeHealthRequest) (*leasev1.ListNodeHealthResponse, error) {
	snapshot, err := s.snapshot()
	if err != nil {
		return nil, s.statusOf(err)
	}
	arguments, after := fmt.Sprintf("nodes\x00%d\x00%s", request.Health, request.Zone), ""
	if request.PageToken != "" {
		if after, err = api.ParsePageToken(request.PageToken, arguments); err != nil {
			return nil, s.statusOf(err)
		}
	}
	page, more := snapshot.Page(after, api.PageSize(request.PageSize), func(n *nodehealthcontroller.Node) bool {
		return inZone(n, request.Zone) &&
			(request.Health == leasev1.NodeHealth_HEALTH_UNSPECIFIED ||
				request.Health == healthOf(explain.HealthOf(n.Object, n.Assessment.Health)))
	})
	response := &leasev1.ListNodeHealthResponse{Freshness: s.freshness(snapshot.Epoch)}
	for _, node := range page {
		nodeStatus := statusOfNode(snapshot, node)
		response.Nodes = append(response.Nodes, nodeHealthOf(snapshot, node, &nodeStatus))
	}
	if more {
		response.NextPageToken = api.PageToken(arguments, page[len(page)-1].Object.Name)
	}
	return response, nil
}

// ListZones returns all zones if this replica holds the shard that decides for zones.
func (s *Server) ListZones(context.Context, *leasev1.ListZonesRequest) (*leasev1.ListZonesResponse, error) {
	snapshot, err := s.snapshot()
	if err != nil {
		return nil, s.statusOf(err)
	}
	held, ok := s.HeldShards.Get(nodehealthcontroller.ZoneShard)
	if !ok {
		return nil, s.statusOf(sessioncontroller.NotHeldError{Shard: nodehealthcontroller.ZoneShard})
	}
	response := &leasev1.ListZonesResponse{Freshness: s.freshness(held.Epoch())}
	for _, zone := range snapshot.Zones {
		response.Zones = append(response.Zones, zoneOf(snapshot, zone))
	}
	if blindness := snapshot.Blindness; blindness != nil {
		response.BlindBy, response.BlindTime = blindness.String(), api.Timestamp(snapshot.Wall(blindness.Since))
	}
	return response, nil
}

// ExplainNodeHealth returns the evidence for the status of a Node.
func (s *Server) ExplainNodeHealth(ctx context.Context, request *leasev1.ExplainNodeHealthRequest) (*leasev1.ExplainNodeHealthResponse, error) {
	snapshot, node, err := s.find(request.Name)
	if err != nil {
		return nil, s.statusOf(err)
	}
	facts := s.facts(ctx, snapshot, node)
	chain := explain.Explain(facts)
	response := &leasev1.ExplainNodeHealthResponse{
		Node: nodeHealthOf(snapshot, node, &facts.NodeStatus), FirstBroken: int32(chain.FirstBroken), Silence: durationpb.New(chain.Silence),
		Freshness: s.nodeFreshness(node),
	}
	for i := range chain.Links {
		response.Evidence = append(response.Evidence, evidenceOf(&chain.Links[i], s.Replica))
	}
	return response, nil
}

// find returns a Node whose shard this replica holds.
func (s *Server) find(resource string) (*nodehealthcontroller.Snapshot, *nodehealthcontroller.Node, error) {
	snapshot, err := s.snapshot()
	if err != nil {
		return nil, nil, err
	}
	name := strings.TrimPrefix(resource, "nodes/")
	shard := s.Catalog.Shard(class.Node, name)
	if _, held := s.HeldShards.Get(shard); !held {
		return nil, nil, sessioncontroller.NotHeldError{Shard: shard}
	}
	node := snapshot.Node(name)
	switch {
	case node == nil:
		return nil, nil, nodeNotFoundError{name: name}
	case !node.Held:
		return nil, nil, errNotSynced // the replica has just claimed the shard
	}
	return snapshot, node, nil
}

func (s *Server) snapshot() (*nodehealthcontroller.Snapshot, error) {
	if !s.Enabled {
		return nil, errLoopDisabled
	}
	if snapshot := s.Publisher.Snapshot(); snapshot != nil {
		return snapshot, nil
	}
	return nil, errNotSynced
}

func inZone(n *nodehealthcontroller.Node, zone string) bool {
	return zone == "" || zoneName(n.Zone) == zone
}

func (s *Server) freshness(epoch int64) *statusv1.Freshness {
	return status.Freshness(s.Replica, epoch, "")
}

func (s *Server) nodeFreshness(node *nodehealthcontroller.Node) *statusv1.Freshness {
	return status.Freshness(s.Replica, node.Epoch, node.Object.ResourceVersion)
}

// statusOf is the table from errors to gRPC statuses.
func (s *Server) statusOf(err error) error {
	var (
		notHeld  sessioncontroller.NotHeldError
		notFound nodeNotFoundError
	)
	switch {
	case errors.Is(err, errLoopDisabled):
		return rpcerror.New(codes.FailedPrecondition, reasonLoopDisabled,
			fmt.Sprintf("the loop %s does not run on this replica; name it in --loops of every replica", s.Loop))
	case errors.Is(err, errNotSynced):
		return rpcerror.New(codes.Unavailable, reasonCacheNotSynced, err.Error(), rpcerror.WithRetryAfter(notSyncedRetryAfter))
	case errors.As(err, &notHeld):
		return rpcerror.NotLeader(s.Service, s.Owners().Address(notHeld.Shard))
	case errors.As(err, &notFound):
		return rpcerror.New(codes.NotFound, reasonNodeNotFound, err.Error(), rpcerror.WithMetadata("name", notFound.name))
	case errors.Is(err, pagetoken.ErrInvalid):
		return rpcerror.New(codes.InvalidArgument, rpcerror.InvalidPageTokenReason, err.Error(), rpcerror.WithField("page_token", err.Error()))
	}
	return err
}
