package nodeapi

import (
	"context"
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
)

// WatchNodeHealth sends the Nodes of the held shards and their changes until the client leaves.
func (s *Server) WatchNodeHealth(request *leasev1.WatchNodeHealthRequest, stream grpc.ServerStreamingServer[leasev1.WatchNodeHealthResponse]) error {
	if _, err := s.snapshot(); err != nil {
		return s.statusOf(err)
	}
	source := &nodeEvents{publisher: s.Publisher, watcher: s.Publisher.Watch(func(n *nodehealthcontroller.Node) bool {
		return inZone(n, request.Zone)
	})}
	return s.statusOf(api.Follow(stream.Context(), source, false, func(e *nodeEvent) error {
		return stream.Send(s.watchResponse(e))
	}))
}

func (s *Server) watchResponse(e *nodeEvent) *leasev1.WatchNodeHealthResponse {
	if e.event == nil {
		return &leasev1.WatchNodeHealthResponse{
			Type: leasev1.WatchNodeHealthResponse_TYPE_BOOKMARK, Freshness: s.freshness(e.snapshot.Epoch),
		}
	}
	node := e.event.Node
	response := &leasev1.WatchNodeHealthResponse{Type: eventTypeOf(e.event.Type), Freshness: s.nodeFreshness(node)}
	if e.event.Type == nodehealthcontroller.Deleted {
		response.Node = &leasev1.NodeHealth{
			Name: "nodes/" + node.Object.Name, Uid: string(node.Object.UID), Shard: int32(node.Shard), Epoch: node.Epoch,
		}
		return response
	}
	nodeStatus := statusOfNode(e.snapshot, node)
	response.Node = nodeHealthOf(e.snapshot, node, &nodeStatus)
	return response
}

// nodeEvent is an event and the snapshot in which it was found. A bookmark has no event.
type nodeEvent struct {
	event    *nodehealthcontroller.Event
	snapshot *nodehealthcontroller.Snapshot
}

// nodeEvents is a api.Source. A slow reader gets the newest state of each Node only.
type nodeEvents struct {
	publisher Publisher
	watcher   *nodehealthcontroller.Watcher
	// listed is set once NextWithin has returned the existing Nodes.
	listed bool
}

func (n *nodeEvents) NextWithin(ctx context.Context, quiet time.Duration) ([]nodeEvent, error) {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		changed := n.publisher.Changed() // before the read, so that no change is missed
		events, published := n.watcher.Next()
		bookmark, err := n.Bookmark(ctx)
		if !published || err != nil {
			return nil, errNotSynced
		}
		result := make([]nodeEvent, 0, len(events)+1)
		for i := range events {
			result = append(result, nodeEvent{event: &events[i], snapshot: bookmark.snapshot})
		}
		if !n.listed {
			n.listed = true
			result = append(result, bookmark)
		}
		if len(result) > 0 {
			return result, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (n *nodeEvents) Bookmark(context.Context) (nodeEvent, error) {
	snapshot := n.publisher.Snapshot()
	if snapshot == nil {
		return nodeEvent{}, errNotSynced
	}
	return nodeEvent{snapshot: snapshot}, nil
}
