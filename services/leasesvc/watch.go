package leasesvc

import (
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/keeper"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// bookmarkPeriod is how long a watch may be quiet.
const bookmarkPeriod = 30 * time.Second

// WatchLeases implements the RPC.
func (s *server) WatchLeases(request *leasev1.WatchLeasesRequest, wire grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	k, err := s.keeper()
	if err != nil {
		return s.problem(err)
	}
	subscription, err := k.Watch(wire.Context(), s.catalog.within(request.Parent))
	if err != nil {
		return s.problem(err)
	}
	defer k.Unwatch(subscription)
	w := &watcher{server: s, sessions: k, wants: subscription.Wants, wire: wire}
	if err := w.begin(subscription.Existing); err != nil {
		return err
	}
	subscription.Existing = nil
	return s.problem(w.follow(subscription.Events))
}

// watcher is one WatchLeases call.
type watcher struct {
	*server
	sessions *keeper.Keeper
	wants    func(session.ClassID) bool
	wire     grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]
}

func (w *watcher) begin(existing []keeper.Lease) error {
	for i := range existing {
		if err := w.send(leasev1.WatchLeasesResponse_TYPE_ADDED, &existing[i]); err != nil {
			return err
		}
	}
	return w.send(leasev1.WatchLeasesResponse_TYPE_BOOKMARK, nil)
}

func (w *watcher) follow(events <-chan *keeper.Event) error {
	quiet := time.NewTimer(bookmarkPeriod)
	defer quiet.Stop()
	for {
		var err error
		select {
		case e, open := <-events:
			if !open {
				return errSlowWatcher
			}
			err = w.tell(e)
		case <-quiet.C:
			err = w.send(leasev1.WatchLeasesResponse_TYPE_BOOKMARK, nil)
		case <-w.sessions.Done():
			return keeper.ErrEnded
		case <-w.wire.Context().Done():
			return endOf(w.wire.Context())
		}
		if err != nil {
			return err
		}
		quiet.Reset(bookmarkPeriod)
	}
}

func (w *watcher) tell(e *keeper.Event) error {
	if e.Type != keeper.Dismissed {
		return w.send(eventTypeOf(e.Type), &e.Lease)
	}
	for i := range e.Dismissed {
		lease := &e.Dismissed[i]
		if !w.wants(lease.Holder.Key.Class) {
			continue
		}
		if err := w.send(leasev1.WatchLeasesResponse_TYPE_DELETED, lease); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) send(what leasev1.WatchLeasesResponse_Type, lease *keeper.Lease) error {
	event := &leasev1.WatchLeasesResponse{Type: what}
	if lease == nil {
		event.Freshness = w.freshness(w.sessions.Epoch())
	} else {
		event.Lease, event.Freshness = w.catalog.lease(lease), w.freshness(lease.Epoch)
	}
	return w.wire.Send(event)
}
