package leasesvc

import (
	"errors"
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// bookmarkPeriod is how long a watch may be quiet.
const bookmarkPeriod = 30 * time.Second

// WatchLeases implements the RPC.
func (s *server) WatchLeases(request *leasev1.WatchLeasesRequest, wire grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	k, err := s.keeper()
	if err != nil {
		return s.problem(err)
	}
	since, err := parseVersion(k.InstanceID(), request.Parent, request.StartVersion)
	if err != nil {
		return s.problem(err)
	}
	subscription, err := k.Watch(wire.Context(), s.catalog.within(request.Parent), since)
	if errors.Is(err, sessioncontroller.ErrCompacted) {
		err = errVersionTooOld
	}
	if err != nil {
		return s.problem(err)
	}
	defer subscription.Close()
	w := &watcher{server: s, sessions: k, parent: request.Parent, resumed: since != (sessioncontroller.Version{}), wire: wire}
	return s.problem(w.follow(subscription))
}

// watcher is one WatchLeases call.
type watcher struct {
	*server
	sessions *sessioncontroller.Controller
	parent   string
	resumed  bool // and what there was to catch up with has not been sent yet
	wire     grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]
}

func (w *watcher) follow(subscription *sessioncontroller.Subscription) error {
	for {
		// Whoever resumes gets the bookmark as soon as he has caught up.
		patience := bookmarkPeriod
		if w.resumed {
			patience = 0
		}
		events, err := subscription.NextWithin(w.wire.Context(), patience)
		if err == nil && len(events) == 0 {
			events, err = w.bookmark(subscription)
		}
		if err != nil {
			return w.ended(err)
		}
		for i := range events {
			if err := w.send(&events[i]); err != nil {
				return err
			}
		}
	}
}

func (w *watcher) bookmark(subscription *sessioncontroller.Subscription) ([]sessioncontroller.Event, error) {
	w.resumed = false
	version, err := subscription.Version(w.wire.Context())
	return []sessioncontroller.Event{{Type: sessioncontroller.Bookmark, Version: version}}, err
}

func (w *watcher) ended(err error) error {
	switch {
	case w.wire.Context().Err() != nil:
		return endOf(w.wire.Context())
	case errors.Is(err, sessioncontroller.ErrCompacted):
		return errSlowWatcher
	}
	return err
}

func (w *watcher) send(e *sessioncontroller.Event) error {
	response := &leasev1.WatchLeasesResponse{
		Type: eventTypeOf(e.Type), Version: versionText(w.sessions.InstanceID(), w.parent, e.Version),
	}
	if e.Type == sessioncontroller.Bookmark {
		response.Freshness = w.freshness(w.sessions.Epoch())
	} else {
		response.Lease, response.Freshness = w.catalog.lease(&e.Lease), w.freshness(e.Lease.Epoch)
	}
	return w.wire.Send(response)
}
