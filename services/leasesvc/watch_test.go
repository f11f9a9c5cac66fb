package leasesvc_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc"
)

func TestWatchLeases_SendsSessionsThenChanges(t *testing.T) {
	f := newFixture(t, setup{loops: []string{"-" + leasesvc.WritebackLoop}})
	f.beat(1, holder("n1", "1"))
	watch, err := f.client.WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{Parent: "namespaces/kube-node-lease"})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what leasev1.WatchLeasesResponse_Type, name, boot string) {
		t.Helper()
		event, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(event.Type, event.Lease.GetHolder().GetName(), event.Lease.GetHolder().GetBootId(), event.Freshness.GetEpoch())
		if want := fmt.Sprint(what, name, boot, 1); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	expect(leasev1.WatchLeasesResponse_TYPE_ADDED, "n1", "1")
	expect(leasev1.WatchLeasesResponse_TYPE_BOOKMARK, "", "")
	f.beat(2, holder("n1", "1")) // a renewal is no event
	f.beat(1, holder("n2", "1"))
	expect(leasev1.WatchLeasesResponse_TYPE_ADDED, "n2", "1")
	f.beat(1, holder("n1", "2"))
	expect(leasev1.WatchLeasesResponse_TYPE_MODIFIED, "n1", "2")
	if _, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder("n2", "1")}); err != nil {
		t.Fatal(err)
	}
	expect(leasev1.WatchLeasesResponse_TYPE_DELETED, "n2", "1")
	f.candidate.Lose()
	expect(leasev1.WatchLeasesResponse_TYPE_DELETED, "n1", "2")
	f.candidate.Regain()
	f.awaitLeading()
	f.beat(1, holder("n1", "2"))
	if event, err := watch.Recv(); err != nil || event.Type != leasev1.WatchLeasesResponse_TYPE_ADDED || event.Lease.Epoch != 2 {
		t.Errorf("got %v, error %v; want n1 added at epoch 2", event, err)
	}
}

func TestWatchLeases_ResumesAfterAVersion(t *testing.T) {
	f := newFixture(t, setup{loops: []string{"-" + leasesvc.WritebackLoop}})
	f.beat(1, holder("n1", "1"), holder("n2", "1"))
	watch := func(parent, version string) grpc.ServerStreamingClient[leasev1.WatchLeasesResponse] {
		w, err := f.client.WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{Parent: parent, StartVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	const nodes = "namespaces/kube-node-lease"
	first := watch(nodes, "")
	var bookmark *leasev1.WatchLeasesResponse
	for range 3 {
		var err error
		if bookmark, err = first.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if bookmark.Type != leasev1.WatchLeasesResponse_TYPE_BOOKMARK || bookmark.Version == "" {
		t.Fatalf("got %v, want a bookmark with a version", bookmark)
	}
	f.beat(1, holder("n2", "2"))
	if _, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder("n1", "1")}); err != nil {
		t.Fatal(err)
	}
	resumed := watch(nodes, bookmark.Version)
	for _, want := range []string{"TYPE_MODIFIED n2", "TYPE_DELETED n1", "TYPE_BOOKMARK "} {
		event, err := resumed.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(event.Type, " ", event.Lease.GetHolder().GetName()); got != want || event.Version == "" {
			t.Errorf("resumed with %s, version %q; want %s with a version", got, event.Version, want)
		}
	}
	other := newFixture(t, setup{loops: []string{"-" + leasesvc.WritebackLoop}})
	otherReplica, err := other.client.WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{Parent: nodes, StartVersion: bookmark.Version})
	if err != nil {
		t.Fatal(err)
	}
	for what, w := range map[string]grpc.ServerStreamingClient[leasev1.WatchLeasesResponse]{
		"another parent": watch("", bookmark.Version), "another replica": otherReplica, "invalid version": watch(nodes, "invalid"),
	} {
		_, err := w.Recv()
		expectError(t, what, err, codes.OutOfRange, "VERSION_TOO_OLD")
	}
}

func TestWatchLeases_SlowReaderGetsTheLastState(t *testing.T) {
	f := newFixture(t, setup{loops: []string{"-" + leasesvc.WritebackLoop}})
	watch, err := f.client.WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil { // the bookmark: the watch has begun
		t.Fatal(err)
	}
	for batch := range 40 {
		var many []*leasev1.Holder
		for i := range 1000 {
			many = append(many, holder(fmt.Sprintf("node-%d", i), fmt.Sprint(batch)))
		}
		f.beat(1, many...)
	}
	last, events := map[string]string{}, 0
	for len(last) < 1000 || slices.ContainsFunc(slices.Collect(maps.Values(last)), func(boot string) bool { return boot != "39" }) {
		event, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		last[event.Lease.Holder.Name] = event.Lease.Holder.BootId
		events++
	}
	if events >= 40_000 {
		t.Errorf("%d events for 40,000 changes, want fewer", events)
	}
}
