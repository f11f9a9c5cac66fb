package merge_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
)

type thing struct {
	name  string
	epoch int64
	color string
}

func (t thing) GetName() string { return t.name }
func (t thing) GetEpoch() int64 { return t.epoch }

func same(a, b thing) bool { return a == b }

func all(thing) bool { return true }

// told is everything that a reader can take now, as words.
func told(r *merge.Reader[thing]) []string {
	var words []string
	for r.Pending() {
		events, bookmark := r.Take(10)
		for _, event := range events {
			kind := map[merge.Kind]string{merge.Added: "added", merge.Modified: "modified", merge.Removed: "removed"}[event.Kind]
			words = append(words, fmt.Sprintf("%s %s %s@%d", kind, event.Item.name, event.Item.color, event.Item.epoch))
		}
		if bookmark {
			words = append(words, "bookmark")
		}
		if len(events) == 0 && !bookmark {
			break
		}
	}
	return words
}

func check(t *testing.T, r *merge.Reader[thing], want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, told(r)); diff != "" {
		t.Errorf("the reader is told (-want +got):\n%s", diff)
	}
}

// standing is a state with a red n1 at epoch 5, told by replica a; replica b has nothing.
func standing() *merge.State[thing] {
	s := merge.New(same)
	s.Expect(noon, []string{"a", "b"})
	for _, replica := range []string{"a", "b"} {
		s.Begin(replica, false)
	}
	s.Put("a", thing{name: "n1", epoch: 5, color: "red"})
	s.Bookmark(noon, "a")
	s.Bookmark(noon, "b")
	return s
}

func TestState_ReaderGetsEverythingThenABookmarkThenChanges(t *testing.T) {
	s := standing()
	r := s.Join(all)

	check(t, r, "added n1 red@5", "bookmark")
	s.Put("a", thing{name: "n1", epoch: 5, color: "green"})
	s.Put("b", thing{name: "n2", epoch: 6, color: "red"})
	check(t, r, "modified n1 green@5", "added n2 red@6")
}

func TestState_BookmarkWaitsForAllWhoMayTell(t *testing.T) {
	s := merge.New(same)
	r := s.Join(all)
	check(t, r) // nobody has said yet who there is
	s.Expect(noon, []string{"a", "b"})
	s.Put("a", thing{name: "n1", epoch: 5})
	s.Bookmark(noon, "a")
	check(t, r, "added n1 @5")

	s.Fail("b")

	check(t, r, "bookmark")
	if diff := cmp.Diff([]string{"b"}, s.Missing()); diff != "" {
		t.Errorf("Missing() (-want +got):\n%s", diff)
	}
}

func TestState_MoveIsAModification(t *testing.T) {
	s := standing()
	r := s.Join(all)
	told(r)

	s.Remove(noon, "a", thing{name: "n1", epoch: 5})
	check(t, r)
	s.Put("b", thing{name: "n1", epoch: 7, color: "red"})
	s.Advance(noon.Add(time.Hour))

	check(t, r, "modified n1 red@7")
}

func TestState_GoneIsBelievedAfterHold(t *testing.T) {
	s := standing()
	r := s.Join(all)
	told(r)

	s.Remove(noon, "a", thing{name: "n1", epoch: 5})
	if next := s.Advance(noon.Add(merge.Hold - 1)); !next.Equal(noon.Add(merge.Hold)) {
		t.Errorf("Advance() = %s, want the moment at which to believe it", next)
	}
	check(t, r)
	if next := s.Advance(noon.Add(merge.Hold)); !next.IsZero() {
		t.Errorf("Advance() = %s although nothing is left to wait for", next)
	}

	check(t, r, "removed n1 red@5")
}

func TestState_WordsOfEarlierTermsAreIgnored(t *testing.T) {
	s := standing()
	s.Put("b", thing{name: "n1", epoch: 7, color: "green"})
	r := s.Join(all)
	told(r)

	s.Put("a", thing{name: "n1", epoch: 5, color: "blue"})
	s.Remove(noon, "a", thing{name: "n1", epoch: 5})
	s.Advance(noon.Add(merge.Hold))

	check(t, r)
}

func TestState_FailureTakesNothingWithIt(t *testing.T) {
	s := standing()
	r := s.Join(all)
	told(r)

	s.Fail("a")
	s.Advance(noon.Add(time.Hour))
	check(t, r, "bookmark")

	s.Begin("a", false)
	s.Put("a", thing{name: "n3", epoch: 5, color: "red"})
	if diff := cmp.Diff([]string{"a"}, s.Missing()); diff != "" {
		t.Errorf("Missing() while a tells all anew (-want +got):\n%s", diff)
	}
	s.Bookmark(noon.Add(time.Hour), "a")
	s.Advance(noon.Add(time.Hour + merge.Hold))
	check(t, r, "removed n1 red@5", "added n3 red@5", "bookmark")
}

func TestState_ResumedStreamKeepsWhatItDoesNotMention(t *testing.T) {
	s := standing()
	r := s.Join(all)
	told(r)

	s.Fail("a")
	s.Begin("a", true)
	s.Bookmark(noon, "a")
	s.Advance(noon.Add(time.Hour))

	check(t, r, "bookmark")
}

func TestState_ItemsOfAReplicaThatLeftWaitForASuccessor(t *testing.T) {
	s := standing()
	r := s.Join(all)
	told(r)

	s.Expect(noon, []string{"b"})
	check(t, r, "bookmark")
	s.Advance(noon.Add(merge.Hold))
	check(t, r, "removed n1 red@5")
}

// After etcd was restored from a backup epochs begin anew; only replicas that are new themselves say so.
func TestState_EarlierEpochCountsOnceItsBetterHasLeft(t *testing.T) {
	s := standing()
	r := s.Join(all)
	told(r)

	s.Expect(noon, []string{"c"})
	s.Put("c", thing{name: "n1", epoch: 2, color: "green"})
	s.Bookmark(noon, "c")
	s.Advance(noon.Add(merge.Hold))

	check(t, r, "modified n1 green@2", "bookmark")
}

func TestState_SlowReaderSkipsToTheNewest(t *testing.T) {
	s := standing()
	slow := s.Join(all)
	told(slow)
	for _, color := range []string{"green", "blue", "black"} {
		s.Put("a", thing{name: "n1", epoch: 5, color: color})
	}
	s.Put("a", thing{name: "n2", epoch: 5, color: "red"}) // comes and goes unseen
	s.Remove(noon, "a", thing{name: "n2", epoch: 5})
	s.Advance(noon.Add(merge.Hold))

	check(t, slow, "modified n1 black@5")
}

// What comes and goes leaves nothing: neither behind a reader that stands still, nor once all readers know.
func TestState_ChurnLeavesNothing(t *testing.T) {
	s := standing()
	still, awake := s.Join(all), s.Join(all)
	told(still)
	now := noon
	for i := range 1000 {
		name := fmt.Sprintf("brief-%d", i)
		s.Put("a", thing{name: name, epoch: 5})
		told(awake)
		s.Remove(now, "a", thing{name: name, epoch: 5})
		now = now.Add(merge.Hold)
		s.Advance(now)
		told(awake)
	}

	check(t, still)
	if places := s.Places(); places > 3 {
		t.Errorf("%d places are kept for one item", places)
	}
}

func TestState_WhatAReaderKnewIsForgottenWhenItLeaves(t *testing.T) {
	s := standing()
	r := s.Join(all)
	told(r)
	s.Remove(noon, "a", thing{name: "n1", epoch: 5})
	s.Advance(noon.Add(merge.Hold))

	s.Leave(r)
	s.Put("a", thing{name: "n2", epoch: 5})

	if places := s.Places(); places != 1 {
		t.Errorf("%d places are kept for one item", places)
	}
}

func TestReader_WantsDecidesWhatExists(t *testing.T) {
	s := standing()
	r := s.Join(func(item thing) bool { return item.color == "red" })

	check(t, r, "added n1 red@5", "bookmark")
	s.Put("a", thing{name: "n1", epoch: 5, color: "green"})
	check(t, r, "removed n1 green@5")
	s.Put("a", thing{name: "n1", epoch: 5, color: "red"})
	check(t, r, "added n1 red@5")
}

// A replica that comes back while a reader is half through may tell of what has its place behind the reader.
func TestReader_BookmarkWaitsForWhoIsHeardMeanwhile(t *testing.T) {
	s := standing()
	s.Put("a", thing{name: "n2", epoch: 5})
	s.Put("a", thing{name: "n3", epoch: 5})
	s.Remove(noon, "a", thing{name: "n1", epoch: 5})
	s.Advance(noon.Add(merge.Hold))
	s.Fail("b")
	r := s.Join(all)
	if events, _ := r.Take(1); len(events) != 1 || events[0].Item.name != "n2" {
		t.Fatalf("the reader begins with %v, want n2", events)
	}

	s.Begin("b", false)
	s.Put("b", thing{name: "m1", epoch: 6, color: "red"}) // where n1 was
	s.Bookmark(noon, "b")

	check(t, r, "added n3 @5", "added m1 red@6", "bookmark")
}

func TestReader_NudgeIsASignOfLife(t *testing.T) {
	s := standing()
	r := s.Join(all)
	told(r)
	check(t, r)

	s.Nudge()

	check(t, r, "bookmark")
}

func BenchmarkState_ChangeWithTenReaders(b *testing.B) {
	s := merge.New(same)
	s.Expect(noon, []string{"a"})
	names := make([]string, 130_000)
	for i := range names {
		names[i] = fmt.Sprintf("node-%06d", i)
		s.Put("a", thing{name: names[i], epoch: 1})
	}
	readers := make([]*merge.Reader[thing], 10)
	for i := range readers {
		readers[i] = s.Join(all)
		for r := readers[i]; r.Pending(); {
			r.Take(1 << 20)
			if !s.Settled() {
				break
			}
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s.Put("a", thing{name: names[i%len(names)], epoch: 1, color: fmt.Sprint(i)})
		for _, r := range readers {
			r.Take(256)
		}
		i++
	}
}
