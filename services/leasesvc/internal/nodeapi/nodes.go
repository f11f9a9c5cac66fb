package nodeapi

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/watchcache"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// judged are the caches that a Node's health is made from.
const judged = nodestore.Nodes | nodestore.Leases

func (s *Server) GetNodeHealth(ctx context.Context, request *nodev1.GetNodeHealthRequest) (*nodev1.GetNodeHealthResponse, error) {
	snapshot, node, err := s.find(request.Name)
	if err != nil {
		return nil, s.statusOf(err)
	}
	view := newNodeView(snapshot, node)
	view.lease = s.leaseOf(ctx, node)
	return &nodev1.GetNodeHealthResponse{
		Node: s.nodeHealthOf(&view), Sources: s.sources(shardsOf(node), judged),
	}, nil
}

func (s *Server) ListNodeHealth(ctx context.Context, request *nodev1.ListNodeHealthRequest) (*nodev1.ListNodeHealthResponse, error) {
	feed, _, err := s.feed()
	if err != nil {
		return nil, s.statusOf(err)
	}
	response := &nodev1.ListNodeHealthResponse{}
	filter, after := nodeFilter{healths: request.Healths, zones: request.Zones}, ""
	if request.PageToken == "" {
		response.ResumeToken = feed.Nodes.ResumeToken(nodev1.NodeHealthService_WatchNodeHealth_FullMethodName, filter.String())
	} else if after, err = pagetoken.Parse(request.PageToken, nodev1.NodeHealthService_ListNodeHealth_FullMethodName, filter.String()); err != nil {
		return nil, s.statusOf(err)
	}
	snapshot := feed.Snapshot() // after the resume token, so that a watch from there misses nothing
	page, more := snapshot.Page(after, api.PageSize(request.PageSize), filter.selects)
	leases := s.leasesOf(ctx, page)
	for _, node := range page {
		view := newNodeView(snapshot, node)
		view.lease = leases[node.Object.Name]
		response.Nodes = append(response.Nodes, s.nodeHealthOf(&view))
	}
	if more {
		last := page[len(page)-1].Object.Name
		response.NextPageToken = pagetoken.Encode(last, nodev1.NodeHealthService_ListNodeHealth_FullMethodName, filter.String())
	}
	response.Sources = s.sources(snapshot.Shards, judged)
	return response, nil
}

func (s *Server) WatchNodeHealth(request *nodev1.WatchNodeHealthRequest, stream grpc.ServerStreamingServer[nodev1.WatchNodeHealthResponse]) error {
	feed, _, err := s.feed()
	if err != nil {
		return s.statusOf(err)
	}
	ctx, cancel := withFeed(stream.Context(), feed)
	defer cancel()
	filter := nodeFilter{healths: request.Healths, zones: request.Zones}
	watch := watchcache.Request[*nodehealthcontroller.Node]{
		Method: nodev1.NodeHealthService_WatchNodeHealth_FullMethodName, Arguments: filter.String(), ResumeToken: request.ResumeToken,
		BookmarkChanged: feed.ShardsChanged, Pause: watchPause,
		Bookmark: func() *metav1.Bookmark { return &metav1.Bookmark{Sources: s.sources(feed.Shards(), judged)} },
	}
	if !filter.empty() {
		watch.Select = filter.selects
	}
	err = feed.Nodes.Serve(ctx, watch, func(e watchcache.Event[*nodehealthcontroller.Node]) error {
		response := &nodev1.WatchNodeHealthResponse{Type: e.Type, ResumeToken: e.ResumeToken, Bookmark: e.Bookmark}
		switch node := e.Item; {
		case e.Type == metav1.EventType_EVENT_TYPE_BOOKMARK:
		case !node.Held && !feed.Served(node.Shard):
			return nil // its shard was lost: the next bookmark lacks it
		case e.Type == metav1.EventType_EVENT_TYPE_DELETED:
			response.Node = s.deletedNode(node)
		default:
			view := newNodeView(feed.Snapshot(), node)
			response.Node = s.nodeHealthOf(&view)
		}
		return stream.Send(response)
	})
	return s.statusOf(err)
}

func (s *Server) ExplainNodeHealth(ctx context.Context, request *nodev1.ExplainNodeHealthRequest) (*nodev1.ExplainNodeHealthResponse, error) {
	snapshot, node, err := s.find(request.Name)
	if err != nil {
		return nil, s.statusOf(err)
	}
	view := newNodeView(snapshot, node)
	view.lease = s.leaseOf(ctx, node)
	chain := explain.Explain(s.facts(&view))
	response := &nodev1.ExplainNodeHealthResponse{
		Node: s.nodeHealthOf(&view), Sources: s.sources(shardsOf(node), judged|nodestore.Pods),
	}
	response.Evidence, response.BrokenIndex = chain.Proto(s.Replica)
	if chain.Silence > 0 {
		response.Silence = durationpb.New(chain.Silence)
	}
	return response, nil
}

// find returns a Node whose shard this replica holds.
func (s *Server) find(resource string) (*nodehealthcontroller.Snapshot, *nodehealthcontroller.Node, error) {
	_, snapshot, err := s.feed()
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
		return nil, nil, notFoundError{reason: reasonNodeNotFound, name: resource}
	case !node.Held:
		return nil, nil, errNotSynced // the replica has just claimed the shard
	}
	return snapshot, node, nil
}

// nodeFilter selects Nodes. The zero nodeFilter selects all.
type nodeFilter struct {
	healths []nodev1.NodeHealth_Health
	zones   []string
}

func (f nodeFilter) empty() bool { return len(f.healths) == 0 && len(f.zones) == 0 }

func (f nodeFilter) selects(n *nodehealthcontroller.Node) bool {
	return (len(f.zones) == 0 || slices.Contains(f.zones, nodehealthcontroller.ZoneName(n.Zone))) &&
		(len(f.healths) == 0 || slices.Contains(f.healths, healthOf(explain.HealthOf(n.Object, n.Assessment.Health))))
}

// String returns the same text for the same selection.
func (f nodeFilter) String() string {
	return api.EnumsText(f.healths) + strings.Join(slices.Compact(slices.Sorted(slices.Values(f.zones))), ",")
}
