package session_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Holders beat concurrently while the owner makes silent sessions Suspect, ends sessions and reuses
// their slots. Each transition sees all accepted beats, and no Ref of an earlier session renews the
// next session of its slot.
func TestHeartbeats_NoConcurrentBeatIsLostOrRenewsTheNextSession(t *testing.T) {
	const holders, rounds = 8, 20_000
	short := session.Class{Name: "short", Interval: 2 * time.Millisecond, Suspect: 3 * time.Millisecond, TTL: time.Second, Retention: time.Second}
	table := session.NewTable([]session.Class{short}, holders)
	type sender struct {
		ref  atomic.Value // session.Ref
		last atomic.Int64 // the newest accepted beat of ref
	}
	var (
		senders [holders]sender
		clock   atomic.Int64
		stopped atomic.Bool
		running sync.WaitGroup
	)
	names := "abcdefgh"
	register := func(i int) {
		ref, outcome := register(table, monotonic.Instant(clock.Load()), holder(names[i:i+1], "boot"), 1)
		if outcome != session.Opened {
			t.Fatalf("outcome %v for a holder without a session", outcome)
		}
		senders[i].last.Store(0)
		senders[i].ref.Store(ref)
	}
	for i := range senders {
		register(i)
	}
	heartbeats := table.Heartbeats()
	for i := range senders {
		running.Go(func() {
			stale := senders[i].ref.Load().(session.Ref)
			for n := uint64(1); !stopped.Load(); n++ {
				now, ref := clock.Load(), senders[i].ref.Load().(session.Ref)
				if ref != stale && heartbeats.Beat(monotonic.Instant(now), stale, n) {
					t.Error("a Ref of the earlier session renewed")
				}
				stale = ref
				if heartbeats.Beat(monotonic.Instant(now), ref, n) && senders[i].ref.Load() == ref {
					senders[i].last.Store(max(senders[i].last.Load(), now))
				}
			}
		})
	}
	suspects, recovered := 0, 0
	for round := range rounds {
		now := monotonic.Instant(clock.Add(int64(time.Millisecond)))
		accepted := [holders]int64{}
		for i := range senders {
			accepted[i] = senders[i].last.Load()
		}
		for _, step := range advance(table, now) {
			i := int(step.Holder.Key.Name[0] - 'a')
			if silence := time.Duration(int64(now) - accepted[i]); silence < short.Suspect {
				t.Errorf("made suspect %v after an accepted beat", silence)
			}
			suspects++
			if heartbeats.Beat(now, step.Ref, 1) {
				t.Error("Heartbeats renewed a Suspect session")
			}
			if table.Beat(now, now, step.Ref, 1) == session.Recovered {
				recovered++
			}
		}
		if i := round % holders; round%50 == 0 {
			table.Forget(senders[i].ref.Load().(session.Ref))
			register(i)
		}
	}
	stopped.Store(true)
	running.Wait()
	if recovered != suspects {
		t.Errorf("%d of %d Suspect sessions recovered with the next beat", recovered, suspects)
	}
	t.Logf("%d transitions in %d rounds", suspects, rounds)
}

func TestHeartbeats_TakeoverInvalidatesTheEarlierBoot(t *testing.T) {
	table := newTable()
	before, _ := register(table, at(0), holder("a", "1"), 1)
	after, _ := register(table, at(time.Second), holder("a", "2"), 1)
	if table.Heartbeats().Beat(at(2*time.Second), before, 2) {
		t.Error("the replaced boot renewed the session")
	}
	if !table.Heartbeats().Beat(at(3*time.Second), after, 2) {
		t.Error("the current boot did not renew the session")
	}
	if s, _ := table.Lookup(after); s.LastBeat != at(3*time.Second) || s.Sequence != 2 {
		t.Errorf("last beat at %v with sequence %d", s.LastBeat, s.Sequence)
	}
}

func TestHeartbeats_LastBeatNeverMovesBack(t *testing.T) {
	table := newTable()
	ref, _ := register(table, at(time.Minute), holder("a", "1"), 1)
	if !table.Heartbeats().Beat(at(time.Second), ref, 2) {
		t.Error("a late beat is not accepted")
	}
	if s, _ := table.Lookup(ref); s.LastBeat != at(time.Minute) {
		t.Errorf("last beat at %v, want it unchanged", s.LastBeat)
	}
}

func TestHeartbeats_InstantsAreRoundedUpToAMillisecond(t *testing.T) {
	table := newTable()
	for _, want := range []time.Duration{0, 1, time.Millisecond, time.Hour + 1, 10 * 365 * 24 * time.Hour, -time.Hour, -time.Hour - 1} {
		ref, _ := register(table, at(want), holder("a", "1"), 1)
		s, _ := table.Lookup(ref)
		if late := s.LastBeat.Sub(at(want)); late < 0 || late >= time.Millisecond {
			t.Errorf("%v is stored as %v", want, s.LastBeat)
		}
		table.Forget(ref)
	}
}

func BenchmarkHeartbeats_130kHolders(b *testing.B) {
	table, refs := filledTable(130_000)
	heartbeats := table.Heartbeats()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		heartbeats.Beat(at(time.Duration(i)*time.Millisecond), refs[i%len(refs)], uint64(i))
	}
}
