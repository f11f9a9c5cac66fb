package leasesvc

import (
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
)

// WatchNodeHealth implements the RPC.
func (s *nodeServer) WatchNodeHealth(request *leasev1.WatchNodeHealthRequest, wire grpc.ServerStreamingServer[leasev1.WatchNodeHealthResponse]) error {
	if _, err := s.snapshot(); err != nil {
		return s.problem(err)
	}
	w := &nodeWatcher{
		nodeServer: s, wire: wire,
		changes: s.service.nodeHealth.publisher.Watch(func(n *nodehealthcontroller.Node) bool { return inZone(n, request.Zone) }),
	}
	return s.problem(w.follow())
}

// nodeWatcher is one WatchNodeHealth call.
type nodeWatcher struct {
	*nodeServer
	wire    grpc.ServerStreamingServer[leasev1.WatchNodeHealthResponse]
	changes *nodehealthcontroller.Watcher
}

// follow sends what there is, a bookmark, and then what changes. What happens while a slow reader is waited for is looked at
// only after it, so it gets the newest state of each Node and nothing piles up.
func (w *nodeWatcher) follow() error {
	quiet := time.NewTimer(bookmarkPeriod)
	defer quiet.Stop()
	for first := true; ; first = false {
		changed := w.service.nodeHealth.publisher.Changed()
		sent, err := w.catchUp()
		if err != nil {
			return err
		}
		if first {
			if err := w.bookmark(); err != nil {
				return err
			}
		}
		if first || sent {
			quiet.Reset(bookmarkPeriod)
		}
		select {
		case <-changed:
		case <-quiet.C:
			if err := w.bookmark(); err != nil {
				return err
			}
			quiet.Reset(bookmarkPeriod)
		case <-w.wire.Context().Done():
			return endOf(w.wire.Context())
		}
	}
}

func (w *nodeWatcher) catchUp() (sent bool, err error) {
	events, published := w.changes.Next()
	edition := w.service.nodeHealth.publisher.Snapshot()
	if !published || edition == nil {
		return false, errNotSynced
	}
	for _, event := range events {
		if err := w.wire.Send(w.message(edition, event)); err != nil {
			return false, err
		}
	}
	return len(events) > 0, nil
}

func (w *nodeWatcher) message(edition *nodehealthcontroller.Snapshot, event nodehealthcontroller.Event) *leasev1.WatchNodeHealthResponse {
	node := event.Node
	message := &leasev1.WatchNodeHealthResponse{
		Type: nodeEventOf(event.Type), Freshness: status.Freshness(w.service.member.ID, node.Epoch, node.Object.ResourceVersion),
	}
	if event.Type == nodehealthcontroller.Deleted {
		message.Node = &leasev1.NodeHealth{
			Name: "nodes/" + node.Object.Name, Uid: string(node.Object.UID), Shard: int32(node.Shard), Epoch: node.Epoch,
		}
		return message
	}
	standing := nodeStatusOf(edition, node)
	message.Node = nodeHealthOf(edition, node, &standing)
	return message
}

func (w *nodeWatcher) bookmark() error {
	edition := w.service.nodeHealth.publisher.Snapshot()
	if edition == nil {
		return errNotSynced
	}
	return w.wire.Send(&leasev1.WatchNodeHealthResponse{
		Type: leasev1.WatchNodeHealthResponse_TYPE_BOOKMARK, Freshness: status.Freshness(w.service.member.ID, edition.Epoch, ""),
	})
}
