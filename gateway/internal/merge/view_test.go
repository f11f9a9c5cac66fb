package merge_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

// item returns a Node of shard 0.
func item(name string, epoch int64, color string) merge.Item { return itemOf(0, name, epoch, color) }

func itemOf(shard int32, name string, epoch int64, color string) merge.Item {
	return &nodev1.NodeHealth{Name: name, Message: color, Owner: &metav1.Owner{Shard: &shard, Epoch: epoch}}
}

func colorOf(item merge.Item) string { return item.(*nodev1.NodeHealth).Message }

// sink keeps the merged items and the changes as text.
type sink struct {
	items   map[string]string
	changes []string
}

func (s *sink) Put(items ...merge.Item) {
	for _, item := range items {
		s.items[item.GetName()] = colorOf(item)
		s.changes = append(s.changes, fmt.Sprintf("put %s %s@%d", item.GetName(), colorOf(item), item.(*nodev1.NodeHealth).Owner.GetEpoch()))
	}
}

func (s *sink) Delete(last ...merge.Item) {
	for _, item := range last {
		delete(s.items, item.GetName())
		s.changes = append(s.changes, fmt.Sprintf("delete %s %s", item.GetName(), colorOf(item)))
	}
}

// fixture is a View and its sink.
type fixture struct {
	*merge.View
	t    *testing.T
	sink *sink
}

func newView(ownership merge.Ownership) (*merge.View, *sink) {
	s := &sink{items: map[string]string{}}
	cfg := merge.ViewConfig{Ownership: ownership, Sink: s}
	if ownership == merge.Exclusive {
		cfg.Ended = func(last merge.Item) merge.Item { return item(last.GetName(), 0, "ended") }
	}
	return merge.NewView(cfg), s
}

func newFixture(t *testing.T, ownership merge.Ownership, sources ...string) *fixture {
	v, s := newView(ownership)
	v.SetSources(sources)
	return &fixture{View: v, t: t, sink: s}
}

// mark sends a bookmark of a source that covers the shards.
func (f *fixture) mark(id string, epoch int64, first bool, shards ...int32) {
	f.Bookmark(id, &metav1.Source{Service: "leasesvc", ReplicaId: id, Epoch: epoch, Shards: shards}, first)
}

// check compares the changes since the last check.
func (f *fixture) check(want ...string) {
	f.t.Helper()
	if diff := cmp.Diff(want, f.sink.changes); diff != "" {
		f.t.Errorf("changes (-want +got):\n%s", diff)
	}
	f.sink.changes = nil
}

// partitioned returns a view with a red n1 at epoch 5 of source a, which covers shard 0; source b
// covers nothing.
func partitioned(t *testing.T) *fixture {
	f := newFixture(t, merge.Partitioned, "a", "b")
	f.Begin("a", false)
	f.Begin("b", false)
	f.Put("a", item("n1", 5, "red"))
	f.mark("a", 5, true, 0)
	f.mark("b", 0, true)
	f.check("put n1 red@5")
	return f
}

func TestView_SettledOnceEachSourceReportedOrFailed(t *testing.T) {
	f := newFixture(t, merge.Partitioned, "a", "b")
	f.Begin("a", false)
	f.Begin("b", false)
	f.mark("a", 0, true)
	if f.Settled() || !f.Synced() {
		t.Error("settled although b has reported nothing")
	}
	f.Fail("b")
	if diff := cmp.Diff([]string{"b"}, f.Unsynced()); diff != "" || !f.Settled() {
		t.Errorf("settled %v, unsynced (-want +got):\n%s", f.Settled(), diff)
	}
	f.Begin("b", false)
	f.GiveUp("b")
	if !f.Settled() {
		t.Error("not settled although b was given up")
	}
}

func TestView_MoveOfAShardDeletesNothing(t *testing.T) {
	f := partitioned(t)
	f.mark("a", 0, false)
	f.check()
	f.Put("b", item("n1", 7, "red"))
	f.mark("b", 7, false, 0)
	f.check("put n1 red@7")
}

func TestView_NextLeaderDecidesWhatExists(t *testing.T) {
	f := partitioned(t)
	f.Put("a", item("n2", 5, "red"))
	f.Put("a", itemOf(1, "of another shard", 5, "red"))
	f.mark("a", 0, false)
	f.Put("b", item("n1", 7, "green"))
	f.check("put n2 red@5", "put of another shard red@5", "put n1 green@7")
	f.mark("b", 7, false, 0)
	f.check("delete n2 red")
}

func TestView_ReplicaThatRegainsAShardReportsItAnew(t *testing.T) {
	f := partitioned(t)
	f.Put("a", item("n2", 5, "red"))
	f.mark("a", 0, false)
	f.Put("a", item("n1", 9, "red"))
	f.mark("a", 9, false, 0)
	f.check("put n2 red@5", "put n1 red@9", "delete n2 red")
}

// A shard that a replica lost and regained between two bookmarks shows in the epochs.
func TestView_LaterTermOfTheSameLeader(t *testing.T) {
	f := partitioned(t)
	f.Put("a", item("n2", 5, "red"))
	f.Put("a", item("n1", 9, "red"))
	f.mark("a", 9, false, 0)
	f.check("put n2 red@5", "put n1 red@9", "delete n2 red")
}

func TestView_RemovalTakesEffectAtOnce(t *testing.T) {
	f := partitioned(t)
	f.Remove("a", item("n1", 5, ""))
	f.check("delete n1 red")
}

func TestView_ReportsOfAnEarlierTermAreIgnored(t *testing.T) {
	f := partitioned(t)
	f.Put("b", item("n1", 7, "green"))
	f.mark("b", 7, false, 0)
	f.check("put n1 green@7")

	f.Put("a", item("n1", 5, "blue"))
	f.Put("a", item("gone", 5, "blue"))
	f.Remove("a", item("n1", 5, ""))
	f.Begin("a", false)
	f.mark("a", 5, true, 0)
	f.check()
}

func TestView_FailedSourceKeepsItsItems(t *testing.T) {
	f := partitioned(t)
	f.Fail("a")
	f.Begin("a", false)
	f.Put("a", item("n3", 5, "red"))
	if diff := cmp.Diff([]string{"a"}, f.Unsynced()); diff != "" {
		t.Errorf("unsynced while a reports everything again (-want +got):\n%s", diff)
	}
	f.check("put n3 red@5")
	f.mark("a", 5, true, 0)
	f.check("delete n1 red")
}

func TestView_ResumedStreamKeepsOtherItems(t *testing.T) {
	f := partitioned(t)
	f.Fail("a")
	f.Begin("a", true)
	f.mark("a", 5, true, 0)
	f.check()
}

func TestView_ItemsOfASourceThatLeftWaitForTheNextLeader(t *testing.T) {
	f := partitioned(t)
	f.SetSources([]string{"b"})
	f.check()
	f.mark("b", 6, false, 0)
	f.check("delete n1 red")
}

// Epochs start again after etcd was restored from a backup; then all sources are new.
func TestView_EarlierEpochCountsOnceTheSourceOfTheHigherLeft(t *testing.T) {
	f := partitioned(t)
	f.SetSources([]string{"c"})
	f.Begin("c", false)
	f.Put("c", item("n1", 2, "green"))
	f.mark("c", 2, true, 0)
	f.check("put n1 green@2")
}

func TestView_IgnoresWhatNoReplicaReports(t *testing.T) {
	f := partitioned(t)
	f.Put("a", item("", 5, "without a name"))
	f.Put("a", itemOf(-1, "x", 5, ""))
	f.Put("a", itemOf(merge.MaxShards, "x", 5, ""))
	f.Put("stranger", item("x", 99, ""))
	f.Remove("stranger", item("n1", 99, ""))
	f.mark("stranger", 99, true, 0)
	f.Begin("b", false)
	f.mark("b", 99, false, 0) // before the end of its initial report
	f.check()
	if diff := cmp.Diff([]string{"b"}, f.Unsynced()); diff != "" {
		t.Errorf("unsynced (-want +got):\n%s", diff)
	}
}

// replicated returns a view with a red n1 of sources a and b; a leads its shard at epoch 5.
func replicated(t *testing.T) *fixture {
	f := newFixture(t, merge.Replicated, "a", "b")
	for _, source := range []string{"a", "b"} {
		f.Begin(source, false)
	}
	f.Put("a", item("n1", 5, "red"))
	f.Put("b", item("n1", 0, "pale"))
	f.mark("a", 5, true, 0)
	f.mark("b", 0, true)
	f.check("put n1 red@5")
	return f
}

func TestReplicated_LeaderHasTheHighestEpoch(t *testing.T) {
	f := replicated(t)
	f.Put("b", item("n1", 0, "grey"))
	f.Put("a", item("n1", 5, "blue"))
	f.Put("b", item("n1", 9, "green"))
	f.check("put n1 blue@5", "put n1 green@9")
}

// After the leader gave up the shard every report counts, until another source leads it.
func TestReplicated_LeaderMayLowerTheEpoch(t *testing.T) {
	f := replicated(t)
	f.Put("a", item("n1", 0, "red"))
	f.Put("b", item("n1", 0, "grey"))
	f.check("put n1 red@0", "put n1 grey@0")
}

func TestReplicated_RemovalOfTheLeaderTakesEffectAtOnce(t *testing.T) {
	f := replicated(t)
	f.Remove("b", item("n1", 0, ""))
	f.check()
	f.Remove("a", item("n1", 5, ""))
	f.check("delete n1 red")
}

func TestReplicated_ItemStaysWhileAnotherSourceReportsIt(t *testing.T) {
	f := replicated(t)
	f.Put("a", item("n2", 5, "red"))
	f.check("put n2 red@5")
	f.SetSources([]string{"b"})
	f.check("delete n2 red")
	f.Put("b", item("n1", 0, "grey"))
	f.Remove("b", item("n1", 0, ""))
	f.check("put n1 grey@0", "delete n1 grey")
}

func TestReplicated_ItemStaysUntilNoStreamContainsIt(t *testing.T) {
	f := replicated(t)
	f.Begin("a", false)
	f.mark("a", 5, true)
	f.check()
	f.Begin("b", false)
	f.mark("b", 0, true)
	f.check("delete n1 red")
}

// When the last replica is replaced, the items stay until its successor has reported.
func TestReplicated_ItemStaysWithoutASource(t *testing.T) {
	f := replicated(t)
	f.SetSources([]string{"c"})
	f.check()
	f.Begin("c", false)
	f.Put("c", item("n2", 0, "red"))
	f.mark("c", 0, true)
	f.check("put n2 red@0", "delete n1 red")
}

func TestReplicated_ReportCountsAfterTheLeaderLeft(t *testing.T) {
	f := replicated(t)
	f.Begin("b", false)
	f.SetSources([]string{"b"})
	f.Put("b", item("n1", 0, "grey"))
	f.mark("b", 0, true)
	f.check("put n1 grey@0")
}

// exclusive returns a view of which one stream has reported a and b.
func exclusive(t *testing.T) *fixture {
	f := newFixture(t, merge.Exclusive, "")
	f.Begin("", false)
	f.Put("", item("a", 3, "red"))
	f.Put("", item("b", 3, "red"))
	f.mark("", 3, true)
	f.check("put a red@3", "put b red@3")
	return f
}

func TestExclusive_NextStreamReplacesTheLast(t *testing.T) {
	f := exclusive(t)
	f.Begin("", false)
	f.Put("", item("b", 2, "red")) // of any epoch
	f.Put("", item("c", 2, "red"))
	f.check("put b red@2", "put c red@2")
	f.mark("", 2, true)
	f.check("delete a ended")
	f.Begin("", true)
	f.mark("", 2, true)
	f.mark("", 0, false)
	f.check()
}

func TestExclusive_RemovalHasItsState(t *testing.T) {
	f := exclusive(t)
	f.Remove("", item("b", 0, "repaired"))
	f.check("delete b repaired")
}

func TestExclusive_FailureKeepsTheItems(t *testing.T) {
	f := exclusive(t)
	f.Fail("")
	f.check()
	if f.Synced() || !f.Settled() {
		t.Errorf("synced is %v, settled is %v, want a settled view without a source", f.Synced(), f.Settled())
	}
	f.Begin("", false)
	if f.Settled() {
		t.Error("settled before the new stream has reported everything")
	}
}

// A change costs the same for any number of items.
func BenchmarkView_Change(b *testing.B) {
	v, _ := newView(merge.Partitioned)
	v.SetSources([]string{"a"})
	v.Begin("a", false)
	items := make([]merge.Item, 130_000)
	for i := range items {
		items[i] = item(fmt.Sprintf("node-%06d", i), 1, "red")
		v.Put("a", items[i])
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		v.Put("a", items[i%len(items)])
		i++
	}
}
