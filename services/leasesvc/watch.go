package leasesvc

import (
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/keeper"
)

// bookmarkPeriod is how long a watch may be quiet.
const bookmarkPeriod = 30 * time.Second

// WatchLeases implements the RPC.
func (s *server) WatchLeases(request *leasev1.WatchLeasesRequest, wire grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	r, err := s.lead()
	if err != nil {
		return s.problem(err)
	}
	subscription, err := r.Watch(wire.Context(), s.catalog.within(request.Parent))
	if err != nil {
		return s.problem(err)
	}
	defer r.Unwatch(subscription)
	w := &watcher{server: s, reign: r, catalog: s.catalog.of(r), wire: wire}
	if err := w.begin(subscription.Existing); err != nil {
		return err
	}
	subscription.Existing = nil
	return s.problem(w.follow(subscription.Events))
}

// watcher is one WatchLeases call.
type watcher struct {
	*server
	reign   *reign
	catalog catalog
	wire    grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]
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
			err = w.send(eventTypeOf(e.Type), &e.Lease)
		case <-quiet.C:
			err = w.send(leasev1.WatchLeasesResponse_TYPE_BOOKMARK, nil)
		case <-w.reign.Done():
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

func (w *watcher) send(what leasev1.WatchLeasesResponse_Type, lease *keeper.Lease) error {
	event := &leasev1.WatchLeasesResponse{Type: what, Freshness: w.freshness(w.reign)}
	if lease != nil {
		event.Lease = w.catalog.lease(lease)
	}
	return w.wire.Send(event)
}
