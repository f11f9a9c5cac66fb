package leasesvc_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc"
)

type leaseWatch = grpc.ServerStreamingClient[leasev1.WatchLeasesResponse]

func (f *fixture) watchLeases(request *leasev1.WatchLeasesRequest) leaseWatch {
	f.t.Helper()
	watch, err := f.leases.WatchLeases(f.t.Context(), request)
	if err != nil {
		f.t.Fatal(err)
	}
	return watch
}

// expectLeaseEvents reads one event for each text: the type with the name and boot of the holder
// and the epoch of the lease, or with the shards of a bookmark.
func expectLeaseEvents(t *testing.T, watch leaseWatch, want ...string) (last *leasev1.WatchLeasesResponse) {
	t.Helper()
	for _, text := range want {
		event, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%v %s %s %d", event.Type, event.Lease.GetHolder().GetName(), event.Lease.GetHolder().GetBootId(), event.Lease.GetOwner().GetEpoch())
		if b := event.Bookmark; b != nil {
			got = fmt.Sprintf("%v %v", event.Type, b.Sources[0].Shards)
			if b.InitialEventsEnd {
				got += " initial"
			}
		}
		if got != "EVENT_TYPE_"+text {
			t.Errorf("got %s, want %s", got, text)
		}
		last = event
	}
	return last
}

func twoShards(c *leasesvc.Config) { c.Shards = 2 }

func TestWatchLeases_SendsLeasesThenChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{config: twoShards, loops: []string{"-" + leasesvc.WritebackLoop}})
	f.beat(1, holder("n1", "1"))
	watch := f.watchLeases(&leasev1.WatchLeasesRequest{Parent: "namespaces/kube-node-lease"})
	expectLeaseEvents(t, watch, "ADDED n1 1 1", "BOOKMARK [0 1] initial")
	f.beat(2, holder("n1", "1")) // a renewal is no event
	f.beat(1, holder("n2", "1"))
	expectLeaseEvents(t, watch, "ADDED n2 1 1")
	f.beat(1, holder("n1", "2"))
	expectLeaseEvents(t, watch, "MODIFIED n1 2 1")
	if _, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder("n2", "1")}); err != nil {
		t.Fatal(err)
	}
	deleted := expectLeaseEvents(t, watch, "DELETED n2 1 1").Lease
	if deleted.Name != leaseName("n2") || deleted.Owner.GetReplicaId() != "replica-1" {
		t.Errorf("deleted %v, want its name and owner", deleted)
	}
}

// The leases of a lost shard are not deleted: a bookmark lacks the shard.
func TestWatchLeases_SaysWhichShardsItCovers(t *testing.T) {
	t.Parallel()
	f := newShardFixture(t, setup{loops: []string{"-" + leasesvc.WritebackLoop}})
	lost := f.nameIn(1, "n")
	f.beat(1, holder(lost, "1"))
	watch := f.watchLeases(&leasev1.WatchLeasesRequest{})
	source := expectLeaseEvents(t, watch, "ADDED "+lost+" 1 11", "BOOKMARK [0 1] initial").Bookmark.Sources
	expectSource(t, source, 11, 0, 1)
	f.lose(1, "there:7601")
	expectLeaseEvents(t, watch, "BOOKMARK [0]")
	f.leadership.hold(1, 12)
	expectLeaseEvents(t, watch, "BOOKMARK [0 1]")
	f.beat(1, holder(lost, "1"))
	expectLeaseEvents(t, watch, "ADDED "+lost+" 1 12")
}

func TestWatchLeases_SelectsStates(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{config: func(c *leasesvc.Config) {
		c.Shards = 2
		c.Classes[0].HeartbeatInterval, c.Classes[0].RenewInterval = 100*time.Millisecond, 100*time.Millisecond
		c.Classes[0].Grace, c.Classes[0].LeaseDuration = time.Second, time.Second
	}, loops: []string{"-" + leasesvc.WritebackLoop}})
	watch := f.watchLeases(&leasev1.WatchLeasesRequest{States: []leasev1.Lease_State{leasev1.Lease_STATE_EXPIRED}})
	expectLeaseEvents(t, watch, "BOOKMARK [0 1] initial")
	f.beat(1, holder("n1", "1"))
	expectLeaseEvents(t, watch, "ADDED n1 1 1") // it has expired
	f.beat(2, holder("n1", "1"))
	if e := expectLeaseEvents(t, watch, "DELETED n1 1 1"); e.Lease.State != leasev1.Lease_STATE_ALIVE {
		t.Errorf("the lease is %v, want alive", e.Lease.State)
	}
}

func TestWatchLeases_ResumesAfterAToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{config: twoShards, loops: []string{"-" + leasesvc.WritebackLoop}})
	f.beat(1, holder("n1", "1"), holder("n2", "1"))
	const nodes = "namespaces/kube-node-lease"
	list, err := f.leases.ListLeases(t.Context(), &leasev1.ListLeasesRequest{Parent: nodes})
	if err != nil {
		t.Fatal(err)
	}
	bookmark := expectLeaseEvents(t, f.watchLeases(&leasev1.WatchLeasesRequest{Parent: nodes}),
		"ADDED n1 1 1", "ADDED n2 1 1", "BOOKMARK [0 1] initial").ResumeToken
	f.beat(1, holder("n2", "2"))
	if _, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder("n1", "1")}); err != nil {
		t.Fatal(err)
	}
	for what, token := range map[string]string{"list": list.ResumeToken, "bookmark": bookmark} {
		t.Log("resumed after the " + what)
		watch := f.watchLeases(&leasev1.WatchLeasesRequest{Parent: nodes, ResumeToken: token})
		modified := expectLeaseEvents(t, watch, "MODIFIED n2 2 1").ResumeToken
		expectLeaseEvents(t, watch, "DELETED n1 1 1", "BOOKMARK [0 1] initial")
		watch = f.watchLeases(&leasev1.WatchLeasesRequest{Parent: nodes, ResumeToken: modified})
		expectLeaseEvents(t, watch, "DELETED n1 1 1", "BOOKMARK [0 1] initial")
	}
	other := newFixture(t, setup{config: twoShards, loops: []string{"-" + leasesvc.WritebackLoop}})
	alive := []leasev1.Lease_State{leasev1.Lease_STATE_ALIVE}
	for what, w := range map[string]leaseWatch{
		"another parent":  f.watchLeases(&leasev1.WatchLeasesRequest{ResumeToken: bookmark}),
		"another filter":  f.watchLeases(&leasev1.WatchLeasesRequest{Parent: nodes, States: alive, ResumeToken: bookmark}),
		"another replica": other.watchLeases(&leasev1.WatchLeasesRequest{Parent: nodes, ResumeToken: bookmark}),
		"no token":        f.watchLeases(&leasev1.WatchLeasesRequest{Parent: nodes, ResumeToken: "invalid"}),
	} {
		_, err := w.Recv()
		expectError(t, what, err, codes.OutOfRange, "RESUME_TOKEN_EXPIRED")
	}
}

func TestWatchLeases_SlowReaderGetsTheLastState(t *testing.T) {
	t.Parallel()
	unpaced := func(c *leasesvc.Config) { c.MaxRegistrations = 100_000 }
	f := newFixture(t, setup{config: unpaced, loops: []string{"-" + leasesvc.WritebackLoop}})
	watch := f.watchLeases(&leasev1.WatchLeasesRequest{})
	if _, err := watch.Recv(); err != nil { // the bookmark: the watch has begun
		t.Fatal(err)
	}
	for batch := range 40 {
		var many []*leasev1.Holder
		for i := range 1000 {
			many = append(many, holder(fmt.Sprintf("node-%d", i), fmt.Sprint(batch)))
		}
		for _, result := range f.beat(1, many...) {
			if result.GetRejection() != nil {
				t.Fatalf("rejected: %v", result)
			}
		}
	}
	last, events := map[string]string{}, 0
	for len(last) < 1000 || slices.ContainsFunc(slices.Collect(maps.Values(last)), func(boot string) bool { return boot != "39" }) {
		event, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.Bookmark != nil {
			continue
		}
		last[event.Lease.GetHolder().GetName()] = event.Lease.GetHolder().GetBootId()
		events++
	}
	if events >= 40_000 {
		t.Errorf("%d events for 40,000 changes: a slow reader must skip states", events)
	}
}
