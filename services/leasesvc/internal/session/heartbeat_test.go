package session_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Holders beat past the owner while it makes whoever seems silent suspect, releases them and gives their slots to others.
// Whatever the two do to each other: a beat that was accepted is seen by every transition that follows, and a slot's next
// tenant is never renewed by a Ref of the one before.
func TestPulses_NoBeatIsLostAtTheEdgeAndNoneGoesToTheNextTenant(t *testing.T) {
	const holders, rounds = 8, 20_000
	short := session.Class{Name: "short", Interval: 2 * time.Millisecond, Suspect: 3 * time.Millisecond, TTL: time.Second, Retention: time.Second}
	table := session.NewTable([]session.Class{short}, holders)
	type post struct {
		ref  atomic.Value // session.Ref
		last atomic.Int64 // newest instant at which a beat of ref was accepted
	}
	var (
		posts [holders]post
		clock atomic.Int64
		over  atomic.Bool
		crew  sync.WaitGroup
	)
	names := "abcdefgh"
	enter := func(i int) {
		ref, outcome := table.Register(monotonic.Instant(clock.Load()), holder(names[i:i+1], "boot"), 1)
		if outcome != session.Opened {
			t.Fatalf("outcome %v for a holder that was gone", outcome)
		}
		posts[i].last.Store(0)
		posts[i].ref.Store(ref)
	}
	for i := range posts {
		enter(i)
	}
	pulses := table.Heartbeats()
	for i := range posts {
		crew.Go(func() {
			stale := posts[i].ref.Load().(session.Ref)
			for n := uint64(1); !over.Load(); n++ {
				now, ref := clock.Load(), posts[i].ref.Load().(session.Ref)
				if ref != stale && pulses.Beat(monotonic.Instant(now), stale, n) {
					t.Error("a Ref of the tenant before was renewed")
				}
				stale = ref
				if pulses.Beat(monotonic.Instant(now), ref, n) && posts[i].ref.Load() == ref {
					posts[i].last.Store(max(posts[i].last.Load(), now))
				}
			}
		})
	}
	suspects, recovered := 0, 0
	for round := range rounds {
		now := monotonic.Instant(clock.Add(int64(time.Millisecond)))
		accepted := [holders]int64{}
		for i := range posts {
			accepted[i] = posts[i].last.Load()
		}
		for _, step := range advance(table, now) {
			i := int(step.Holder.Key.Name[0] - 'a')
			if silence := time.Duration(int64(now) - accepted[i]); silence < short.Suspect {
				t.Errorf("made suspect %v after an accepted beat", silence)
			}
			suspects++
			if pulses.Beat(now, step.Ref, 1) {
				t.Error("a suspect was renewed past the owner")
			}
			if table.Beat(now, step.Ref, 1) == session.Recovered {
				recovered++
			}
		}
		if i := round % holders; round%50 == 0 {
			table.Forget(posts[i].ref.Load().(session.Ref))
			enter(i)
		}
	}
	over.Store(true)
	crew.Wait()
	if recovered != suspects {
		t.Errorf("%d of %d suspects recovered with the beat that came next", recovered, suspects)
	}
	t.Logf("%d suspects in %d rounds", suspects, rounds)
}

func TestPulses_TakeoverEndsTheBeatsOfTheBootBefore(t *testing.T) {
	table := newTable()
	before, _ := table.Register(at(0), holder("a", "1"), 1)
	after, _ := table.Register(at(time.Second), holder("a", "2"), 1)
	if table.Heartbeats().Beat(at(2*time.Second), before, 2) {
		t.Error("the boot that was replaced renewed the session")
	}
	if !table.Heartbeats().Beat(at(3*time.Second), after, 2) {
		t.Error("the boot that has the session did not renew it")
	}
	if s, _ := table.Lookup(after); s.LastBeat != at(3*time.Second) || s.Sequence != 2 {
		t.Errorf("last beat at %v with sequence %d", s.LastBeat, s.Sequence)
	}
}

func TestPulses_BeatNeverMovesBackwards(t *testing.T) {
	table := newTable()
	ref, _ := table.Register(at(time.Minute), holder("a", "1"), 1)
	if !table.Heartbeats().Beat(at(time.Second), ref, 2) {
		t.Error("a beat that was late is not accepted")
	}
	if s, _ := table.Lookup(ref); s.LastBeat != at(time.Minute) {
		t.Errorf("last beat at %v, want it where it was", s.LastBeat)
	}
}

func TestPulses_InstantsAreNeverEarlyAndLessThanAMillisecondLate(t *testing.T) {
	table := newTable()
	for _, want := range []time.Duration{0, 1, time.Millisecond, time.Hour + 1, 10 * 365 * 24 * time.Hour, -time.Hour, -time.Hour - 1} {
		ref, _ := table.Register(at(want), holder("a", "1"), 1)
		s, _ := table.Lookup(ref)
		if late := s.LastBeat.Sub(at(want)); late < 0 || late >= time.Millisecond {
			t.Errorf("%v is told as %v", want, s.LastBeat)
		}
		table.Forget(ref)
	}
}

func BenchmarkPulses_130kHolders(b *testing.B) {
	table, refs := filled(130_000)
	pulses := table.Heartbeats()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		pulses.Beat(at(time.Duration(i)*time.Millisecond), refs[i%len(refs)], uint64(i))
	}
}
