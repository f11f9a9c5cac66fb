package nodeapi

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/grpc"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/watchcache"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

func (s *Server) GetZone(_ context.Context, request *nodev1.GetZoneRequest) (*nodev1.GetZoneResponse, error) {
	feed, held, err := s.zones()
	if err != nil {
		return nil, s.statusOf(err)
	}
	snapshot := feed.Snapshot()
	for _, zone := range snapshot.AllZones() {
		if nodehealthcontroller.ZoneName(zone.Name) == request.Name {
			return &nodev1.GetZoneResponse{Zone: s.zoneOf(snapshot, zone), Sources: s.zoneSources(held)}, nil
		}
	}
	return nil, s.statusOf(notFoundError{reason: reasonZoneNotFound, name: request.Name})
}

func (s *Server) ListZones(_ context.Context, request *nodev1.ListZonesRequest) (*nodev1.ListZonesResponse, error) {
	feed, held, err := s.zones()
	if err != nil {
		return nil, s.statusOf(err)
	}
	response, after := &nodev1.ListZonesResponse{Sources: s.zoneSources(held)}, ""
	if request.PageToken == "" {
		response.ResumeToken = feed.Zones.ResumeToken(nodev1.NodeHealthService_WatchZones_FullMethodName, "")
	} else if after, err = pagetoken.Parse(request.PageToken, nodev1.NodeHealthService_ListZones_FullMethodName); err != nil {
		return nil, s.statusOf(err)
	}
	snapshot := feed.Snapshot() // after the resume token, so that a watch from there misses nothing
	for _, zone := range snapshot.AllZones() {
		response.Zones = append(response.Zones, s.zoneOf(snapshot, zone))
	}
	byName := func(a, b *nodev1.Zone) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(response.Zones, byName)
	rest, found := slices.BinarySearchFunc(response.Zones, &nodev1.Zone{Name: after}, byName)
	if found {
		rest++
	}
	response.Zones = response.Zones[rest:]
	if limit := api.PageSize(request.PageSize); len(response.Zones) > limit {
		response.Zones = response.Zones[:limit]
		response.NextPageToken = pagetoken.Encode(response.Zones[limit-1].Name, nodev1.NodeHealthService_ListZones_FullMethodName)
	}
	response.Conditions = conditionsOf(snapshot, namedHold{"MarkingSuspended", snapshot.Suspension})
	return response, nil
}

// WatchZones ends with the term of the shard.
func (s *Server) WatchZones(request *nodev1.WatchZonesRequest, stream grpc.ServerStreamingServer[nodev1.WatchZonesResponse]) error {
	feed, held, err := s.zones()
	if err != nil {
		return s.statusOf(err)
	}
	ctx, cancel := withFeed(stream.Context(), feed)
	defer cancel()
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	defer context.AfterFunc(held.Context(), func() { lose(sessioncontroller.NotHeldError{Shard: held.ID()}) })()
	err = feed.Zones.Serve(ctx, watchcache.Request[nodehealthcontroller.Zone]{
		Method: nodev1.NodeHealthService_WatchZones_FullMethodName, ResumeToken: request.ResumeToken, Pause: watchPause,
		Bookmark: func() *metav1.Bookmark { return &metav1.Bookmark{Sources: s.zoneSources(held)} },
	}, func(e watchcache.Event[nodehealthcontroller.Zone]) error {
		response := &nodev1.WatchZonesResponse{Type: e.Type, ResumeToken: e.ResumeToken, Bookmark: e.Bookmark}
		if e.Bookmark == nil {
			response.Zone = s.zoneOf(feed.Snapshot(), e.Item)
		}
		return stream.Send(response)
	})
	return s.statusOf(err)
}

// zones returns the feed if this replica holds the shard that decides for zones, in a term that the
// feed has.
func (s *Server) zones() (*nodehealthcontroller.Feed, *sessioncontroller.HeldShard, error) {
	feed, snapshot, err := s.feed()
	if err != nil {
		return nil, nil, err
	}
	held, ok := s.HeldShards.Get(nodehealthcontroller.ZoneShard)
	switch {
	case !ok:
		return nil, nil, sessioncontroller.NotHeldError{Shard: nodehealthcontroller.ZoneShard}
	case snapshot.ZoneEpoch != held.Epoch():
		return nil, nil, errNotSynced // the replica has just claimed the shard
	}
	return feed, held, nil
}

func (s *Server) zoneSources(held *sessioncontroller.HeldShard) []*metav1.Source {
	return s.sources(sessioncontroller.ServedShards{IDs: []int{held.ID()}, Epoch: held.Epoch()}, judged)
}

func (s *Server) zoneOf(snapshot *nodehealthcontroller.Snapshot, zone nodehealthcontroller.Zone) *nodev1.Zone {
	return &nodev1.Zone{
		Name: nodehealthcontroller.ZoneName(zone.Name), State: zoneStateOf(zone.State), NodeCount: int32(zone.Size), NotReadyNodeCount: int32(zone.NotReady),
		TaintsPerSecond: zone.Rate, WaitingNodeCount: int32(zone.Waiting),
		Conditions: conditionsOf(snapshot, namedHold{"MarkingSuspended", zone.Hold}),
		Owner:      api.OwnerOf(s.Replica, nodehealthcontroller.ZoneShard, zone.Epoch),
	}
}
