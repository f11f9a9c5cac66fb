package merge_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
)

type item struct {
	name  string
	epoch int64
	color string
}

func (i item) GetName() string { return i.name }
func (i item) GetEpoch() int64 { return i.epoch }

func newView(ownership merge.Ownership) *merge.View[item] {
	cfg := merge.ViewConfig[item]{Ownership: ownership, Key: merge.KeyOf[item]}
	if ownership != merge.Exclusive {
		cfg.Same = func(a, b item) bool { return a == b }
	}
	if ownership == merge.Exclusive {
		cfg.Ended = func(last item) item { return item{name: last.name, color: "ended"} }
	}
	return merge.NewView(cfg)
}

func all(item) bool { return true }

var kinds = map[merge.EventType]string{merge.Added: "added", merge.Modified: "modified", merge.Removed: "removed"}

// taken returns everything that a reader can take now, as text.
func taken(r *merge.Reader[item]) []string {
	var texts []string
	for r.Pending() {
		events, bookmark := r.Take(10)
		for _, event := range events {
			texts = append(texts, fmt.Sprintf("%s %s %s@%d", kinds[event.Type], event.Item.name, event.Item.color, event.Item.epoch))
		}
		if bookmark {
			texts = append(texts, "bookmark")
		}
		if len(events) == 0 && !bookmark {
			break
		}
	}
	return texts
}

func checkTaken(t *testing.T, r *merge.Reader[item], want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, taken(r)); diff != "" {
		t.Errorf("the reader takes (-want +got):\n%s", diff)
	}
}

// partitioned returns a view with a red n1 at epoch 5 of source a; source b has nothing.
func partitioned() *merge.View[item] {
	v := newView(merge.Partitioned)
	v.SetSources(noon, []string{"a", "b"})
	for _, source := range []string{"a", "b"} {
		v.Begin(source, false)
	}
	v.Put("a", item{name: "n1", epoch: 5, color: "red"})
	v.Bookmark(noon, "a")
	v.Bookmark(noon, "b")
	return v
}

func TestView_ReaderGetsAllThenABookmarkThenChanges(t *testing.T) {
	v := partitioned()
	r := v.Join(all)

	checkTaken(t, r, "added n1 red@5", "bookmark")
	v.Put("a", item{name: "n1", epoch: 5, color: "green"})
	v.Put("b", item{name: "n2", epoch: 6, color: "red"})
	checkTaken(t, r, "modified n1 green@5", "added n2 red@6")
}

func TestView_BookmarkWaitsForAllSources(t *testing.T) {
	v := newView(merge.Partitioned)
	r := v.Join(all)
	checkTaken(t, r) // the sources are not known yet
	v.SetSources(noon, []string{"a", "b"})
	v.Put("a", item{name: "n1", epoch: 5})
	v.Bookmark(noon, "a")
	checkTaken(t, r, "added n1 @5")

	v.Fail("b")

	checkTaken(t, r, "bookmark")
	if diff := cmp.Diff([]string{"b"}, v.Missing()); diff != "" {
		t.Errorf("Missing() (-want +got):\n%s", diff)
	}
}

func TestView_MoveIsAModification(t *testing.T) {
	v := partitioned()
	r := v.Join(all)
	taken(r)

	v.Remove(noon, "a", item{name: "n1", epoch: 5})
	checkTaken(t, r)
	v.Put("b", item{name: "n1", epoch: 7, color: "red"})
	v.Advance(noon.Add(time.Hour))

	checkTaken(t, r, "modified n1 red@7")
}

func TestView_RemovalTakesEffectAfterHold(t *testing.T) {
	v := partitioned()
	r := v.Join(all)
	taken(r)

	v.Remove(noon, "a", item{name: "n1", epoch: 5})
	if next := v.Advance(noon.Add(merge.Hold - 1)); !next.Equal(noon.Add(merge.Hold)) {
		t.Errorf("Advance() = %s, want the end of Hold", next)
	}
	checkTaken(t, r)
	if next := v.Advance(noon.Add(merge.Hold)); !next.IsZero() {
		t.Errorf("Advance() = %s although no removal is pending", next)
	}

	checkTaken(t, r, "removed n1 red@5")
}

func TestView_ReportOfEarlierTermIsIgnored(t *testing.T) {
	v := partitioned()
	v.Put("b", item{name: "n1", epoch: 7, color: "green"})
	r := v.Join(all)
	taken(r)

	v.Put("a", item{name: "n1", epoch: 5, color: "blue"})
	v.Remove(noon, "a", item{name: "n1", epoch: 5})
	v.Advance(noon.Add(merge.Hold))

	checkTaken(t, r)
}

func TestView_FailedSourceKeepsItsItems(t *testing.T) {
	v := partitioned()
	r := v.Join(all)
	taken(r)

	v.Fail("a")
	v.Advance(noon.Add(time.Hour))
	checkTaken(t, r, "bookmark")

	v.Begin("a", false)
	v.Put("a", item{name: "n3", epoch: 5, color: "red"})
	if diff := cmp.Diff([]string{"a"}, v.Missing()); diff != "" {
		t.Errorf("Missing() while a reports everything again (-want +got):\n%s", diff)
	}
	v.Bookmark(noon.Add(time.Hour), "a")
	v.Advance(noon.Add(time.Hour + merge.Hold))
	checkTaken(t, r, "removed n1 red@5", "added n3 red@5", "bookmark")
}

func TestView_ResumedStreamKeepsOtherItems(t *testing.T) {
	v := partitioned()
	r := v.Join(all)
	taken(r)

	v.Fail("a")
	v.Begin("a", true)
	v.Bookmark(noon, "a")
	v.Advance(noon.Add(time.Hour))

	checkTaken(t, r, "bookmark")
}

func TestView_ItemsOfSourceThatLeftWaitForHold(t *testing.T) {
	v := partitioned()
	r := v.Join(all)
	taken(r)

	v.SetSources(noon, []string{"b"})
	checkTaken(t, r, "bookmark")
	v.Advance(noon.Add(merge.Hold))
	checkTaken(t, r, "removed n1 red@5")
}

// Epochs start again after etcd was restored from a backup; then all sources are new.
func TestView_EarlierEpochCountsOnceTheSourceOfTheHigherLeft(t *testing.T) {
	v := partitioned()
	r := v.Join(all)
	taken(r)

	v.SetSources(noon, []string{"c"})
	v.Put("c", item{name: "n1", epoch: 2, color: "green"})
	v.Bookmark(noon, "c")
	v.Advance(noon.Add(merge.Hold))

	checkTaken(t, r, "modified n1 green@2", "bookmark")
}

func TestView_SlowReaderGetsTheNewestState(t *testing.T) {
	v := partitioned()
	slow := v.Join(all)
	taken(slow)
	for _, color := range []string{"green", "blue", "black"} {
		v.Put("a", item{name: "n1", epoch: 5, color: color})
	}
	v.Put("a", item{name: "n2", epoch: 5, color: "red"}) // never seen by the reader
	v.Remove(noon, "a", item{name: "n2", epoch: 5})
	v.Advance(noon.Add(merge.Hold))

	checkTaken(t, slow, "modified n1 black@5")
}

func TestView_ChurnKeepsNoEntries(t *testing.T) {
	v := partitioned()
	idle, active := v.Join(all), v.Join(all)
	taken(idle)
	now := noon
	for i := range 1000 {
		name := fmt.Sprintf("short-lived-%d", i)
		v.Put("a", item{name: name, epoch: 5})
		taken(active)
		v.Remove(now, "a", item{name: name, epoch: 5})
		now = now.Add(merge.Hold)
		v.Advance(now)
		taken(active)
	}

	checkTaken(t, idle)
	if entries := v.Entries(); entries > 3 {
		t.Errorf("%d entries for one item", entries)
	}
}

func TestView_ReaderThatLeavesFreesEntries(t *testing.T) {
	v := partitioned()
	r := v.Join(all)
	taken(r)
	v.Remove(noon, "a", item{name: "n1", epoch: 5})
	v.Advance(noon.Add(merge.Hold))

	v.Leave(r)
	v.Put("a", item{name: "n2", epoch: 5})

	if entries := v.Entries(); entries != 1 {
		t.Errorf("%d entries for one item", entries)
	}
}

func TestReader_FilterDecidesWhatExists(t *testing.T) {
	v := partitioned()
	r := v.Join(func(i item) bool { return i.color == "red" })

	checkTaken(t, r, "added n1 red@5", "bookmark")
	v.Put("a", item{name: "n1", epoch: 5, color: "green"})
	checkTaken(t, r, "removed n1 green@5")
	v.Put("a", item{name: "n1", epoch: 5, color: "red"})
	checkTaken(t, r, "added n1 red@5")
}

// A source that comes back while a reader is halfway may fill an entry behind the reader.
func TestReader_BookmarkWaitsForSourceSyncedMeanwhile(t *testing.T) {
	v := partitioned()
	v.Put("a", item{name: "n2", epoch: 5})
	v.Put("a", item{name: "n3", epoch: 5})
	v.Remove(noon, "a", item{name: "n1", epoch: 5})
	v.Advance(noon.Add(merge.Hold))
	v.Fail("b")
	r := v.Join(all)
	if events, _ := r.Take(1); len(events) != 1 || events[0].Item.name != "n2" {
		t.Fatalf("the reader starts with %v, want n2", events)
	}

	v.Begin("b", false)
	v.Put("b", item{name: "m1", epoch: 6, color: "red"}) // the entry of n1
	v.Bookmark(noon, "b")

	checkTaken(t, r, "added n3 @5", "added m1 red@6", "bookmark")
}

func TestReader_RequestedBookmark(t *testing.T) {
	v := partitioned()
	r := v.Join(all)
	taken(r)
	checkTaken(t, r)

	v.RequestBookmarks()

	checkTaken(t, r, "bookmark")
}

// replicated returns a view with a red n1 of sources a and b; a holds its shard at epoch 5.
func replicated() *merge.View[item] {
	v := newView(merge.Replicated)
	v.SetSources(noon, []string{"a", "b"})
	for source, epoch := range map[string]int64{"a": 5, "b": 0} {
		v.Begin(source, false)
		v.Put(source, item{name: "n1", color: "red", epoch: epoch})
		v.Bookmark(noon, source)
	}
	return v
}

func TestReplicated_HolderHasTheHighestEpoch(t *testing.T) {
	v := replicated()
	reader := v.Join(all)
	checkTaken(t, reader, "added n1 red@5", "bookmark")

	v.Put("b", item{name: "n1", color: "grey", epoch: 0})
	checkTaken(t, reader)
	v.Put("a", item{name: "n1", color: "blue", epoch: 5})
	checkTaken(t, reader, "modified n1 blue@5")
	v.Put("b", item{name: "n1", color: "green", epoch: 9})
	checkTaken(t, reader, "modified n1 green@9")
}

// After the holder gave up the shard every report counts, until another source holds it.
func TestReplicated_HolderMayLowerTheEpoch(t *testing.T) {
	v := replicated()
	reader := v.Join(all)
	checkTaken(t, reader, "added n1 red@5", "bookmark")

	v.Put("a", item{name: "n1", color: "red", epoch: 0})
	v.Put("b", item{name: "n1", color: "grey", epoch: 0})
	checkTaken(t, reader, "modified n1 grey@0")
}

func TestReplicated_RemovalByTheHolderTakesEffectAtOnce(t *testing.T) {
	v := replicated()
	reader := v.Join(all)
	checkTaken(t, reader, "added n1 red@5", "bookmark")

	v.Remove(noon, "b", item{name: "n1"})
	checkTaken(t, reader)
	v.Remove(noon, "a", item{name: "n1", epoch: 5})
	checkTaken(t, reader, "removed n1 red@5")
	if next := v.Advance(noon); !next.IsZero() {
		t.Errorf("a removal is pending until %s, want none", next)
	}
}

func TestReplicated_ItemStaysWhileAnotherSourceReportsIt(t *testing.T) {
	v := replicated()
	v.Put("a", item{name: "n2", color: "red", epoch: 5})
	reader := v.Join(all)
	checkTaken(t, reader, "added n1 red@5", "added n2 red@5", "bookmark")

	v.SetSources(noon, []string{"b"})
	v.Advance(noon.Add(merge.Hold))
	checkTaken(t, reader, "removed n2 red@5", "bookmark")
	v.Put("b", item{name: "n1", color: "grey"})
	checkTaken(t, reader, "modified n1 grey@0")
	v.Remove(noon, "b", item{name: "n1"})
	checkTaken(t, reader, "removed n1 grey@0")
}

func TestReplicated_ItemStaysUntilNoStreamContainsIt(t *testing.T) {
	v := replicated()
	reader := v.Join(all)
	checkTaken(t, reader, "added n1 red@5", "bookmark")

	v.Begin("a", false)
	v.Bookmark(noon, "a")
	v.Advance(noon.Add(merge.Hold))
	checkTaken(t, reader, "bookmark")
	v.Begin("b", false)
	v.Bookmark(noon, "b")
	v.Advance(noon.Add(2 * merge.Hold))
	checkTaken(t, reader, "removed n1 red@5", "bookmark")
}

// exclusive returns a view of which one stream has reported a and b.
func exclusive() *merge.View[item] {
	v := newView(merge.Exclusive)
	v.SetSources(noon, []string{""})
	v.Begin("", false)
	v.Put("", item{name: "a", color: "red"})
	v.Put("", item{name: "b", color: "red"})
	v.Bookmark(noon, "")
	return v
}

func TestExclusive_NextStreamReplacesTheLast(t *testing.T) {
	v := exclusive()
	reader := v.Join(all)
	checkTaken(t, reader, "added a red@0", "added b red@0", "bookmark")

	v.Begin("", false)
	checkTaken(t, reader)
	v.Put("", item{name: "b", color: "red"})
	v.Put("", item{name: "c", color: "red"})
	checkTaken(t, reader, "added b red@0", "added c red@0")
	v.Put("", item{name: "b", color: "green"})
	v.Bookmark(noon, "")
	checkTaken(t, reader, "removed a ended@0", "modified b green@0", "bookmark")
	v.RequestBookmarks()
	checkTaken(t, reader, "bookmark")
}

func TestExclusive_ReportOfEachStreamIsAddedOnce(t *testing.T) {
	v := exclusive()
	reader := v.Join(all)
	taken(reader)
	v.Put("", item{name: "a", color: "green"})
	v.Begin("", false)
	checkTaken(t, reader, "modified a green@0") // still a report of the stream before
	v.Put("", item{name: "a", color: "green"})
	checkTaken(t, reader, "added a green@0")
	v.Put("", item{name: "a", color: "green"})
	checkTaken(t, reader, "modified a green@0")
}

func TestExclusive_RemovalTakesEffectAtOnceWithItsState(t *testing.T) {
	v := exclusive()
	reader := v.Join(all)
	taken(reader)
	v.Remove(noon, "", item{name: "b", color: "repaired"})
	checkTaken(t, reader, "removed b repaired@0")
	v.Put("", item{name: "b", color: "red"})
	checkTaken(t, reader, "added b red@0")
}

func TestExclusive_FailureIsABookmark(t *testing.T) {
	v := exclusive()
	reader := v.Join(all)
	taken(reader)
	v.Fail("")
	checkTaken(t, reader, "bookmark")
	if v.Synced() || !v.Settled() {
		t.Errorf("synced is %v, settled is %v, want a settled view without a source", v.Synced(), v.Settled())
	}
	v.Begin("", false)
	if v.Settled() {
		t.Error("the view is settled before the new stream has reported everything")
	}
}

func BenchmarkView_ChangeWithTenReaders(b *testing.B) {
	v := newView(merge.Partitioned)
	v.SetSources(noon, []string{"a"})
	names := make([]string, 130_000)
	for i := range names {
		names[i] = fmt.Sprintf("node-%06d", i)
		v.Put("a", item{name: names[i], epoch: 1})
	}
	readers := make([]*merge.Reader[item], 10)
	for i := range readers {
		readers[i] = v.Join(all)
		for r := readers[i]; r.Pending(); {
			r.Take(1 << 20)
			if !v.Settled() {
				break
			}
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		v.Put("a", item{name: names[i%len(names)], epoch: 1, color: fmt.Sprint(i)})
		for _, r := range readers {
			r.Take(256)
		}
		i++
	}
}
