package writeback_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

var policy = writeback.Policy{Renew: 10 * time.Second, Duration: 40 * time.Second}

func at(seconds float64) monotonic.Instant {
	return monotonic.Instant(seconds * float64(time.Second))
}

func plan(now monotonic.Instant, slots ...writeback.Slot) []writeback.Write {
	return writeback.Plan(now, []writeback.Policy{policy}, slots, 100)
}

// written is a slot whose object carries the beat of the given second.
func written(second float64) writeback.Slot {
	return writeback.Open(0, at(second)).Started().Succeeded(at(second), at(second), policy)
}

func TestPlan_CreatesComeFirstThenWhatLapsesFirst(t *testing.T) {
	slots := []writeback.Slot{
		written(5).Heard(at(15)),
		written(1).Heard(at(14)),
		writeback.Open(0, at(12)),
		{},
		writeback.Open(0, at(11)),
		written(1).Heard(at(15)),
	}
	want := []writeback.Write{
		{Slot: 4, Reason: writeback.First, Beat: at(11), Lapses: at(11)},
		{Slot: 2, Reason: writeback.First, Beat: at(12), Lapses: at(12)},
		{Slot: 1, Reason: writeback.Renewal, Beat: at(14), Lapses: at(41)},
		{Slot: 5, Reason: writeback.Renewal, Beat: at(15), Lapses: at(41)},
		{Slot: 0, Reason: writeback.Renewal, Beat: at(15), Lapses: at(45)},
	}
	if diff := cmp.Diff(want, plan(at(15), slots...)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[:2], writeback.Plan(at(15), []writeback.Policy{policy}, slots, 2)); diff != "" {
		t.Errorf("with a budget of 2 (-want +got):\n%s", diff)
	}
}

func TestPlan_ObjectIsWrittenOncePerRenewalInterval(t *testing.T) {
	slot := written(0).Heard(at(3)).Heard(at(6))
	if got := plan(at(9.9), slot); got != nil {
		t.Errorf("before the interval has passed: %v", got)
	}
	want := []writeback.Write{{Reason: writeback.Renewal, Beat: at(6), Lapses: at(40)}}
	if diff := cmp.Diff(want, plan(at(10), slot)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPlan_NothingNewIsNotWritten(t *testing.T) {
	for name, slot := range map[string]writeback.Slot{
		"no holder":          {},
		"no beat since":      written(0),
		"expired unwritten":  writeback.Open(0, at(0)).Silenced(),
		"write in flight":    writeback.Open(0, at(0)).Started(),
		"held for a release": writeback.Open(0, at(0)).Hold(),
	} {
		if got := plan(at(1000), slot); got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := plan(at(1000), writeback.Open(0, at(0)).Hold().Let()); len(got) != 1 {
		t.Errorf("let go: %v, want one write", got)
	}
}

func TestSucceeded_BeatDuringTheWriteStaysToBeWritten(t *testing.T) {
	slot := writeback.Open(0, at(0)).Started().Heard(at(2)).Succeeded(at(0), at(0), policy)
	want := []writeback.Write{{Reason: writeback.Renewal, Beat: at(2), Lapses: at(40)}}
	if diff := cmp.Diff(want, plan(at(10), slot)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSucceeded_AfterSilenceLeavesNothingToWrite(t *testing.T) {
	slot := writeback.Open(0, at(0)).Started().Heard(at(2)).Silenced().Succeeded(at(0), at(0), policy)
	if got := plan(at(1000), slot); got != nil {
		t.Errorf("planned %v", got)
	}
}

func TestFailed_BacksOffAsUpstream(t *testing.T) {
	slot := writeback.Open(0, at(0))
	for _, want := range []float64{0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 7, 7, 7} {
		slot = slot.Started().Failed(at(0), 0)
		if slot.NotBefore != at(want) {
			t.Errorf("failure %d: next attempt at %v, want %v", slot.Failures, slot.NotBefore, at(want))
		}
	}
	if got := slot.Started().Failed(at(0), time.Minute).NotBefore; got != at(60) {
		t.Errorf("the pause asked for is longer: next attempt at %v, want %v", got, at(60))
	}
	after := slot.Started().Succeeded(at(0), at(0), policy)
	if got := after.Started().Failed(at(0), 0).NotBefore; got != at(0.2) {
		t.Errorf("first failure after a success: next attempt at %v, want %v", got, at(0.2))
	}
}

func TestPlan_Properties(t *testing.T) {
	instants := rapid.Int64Range(0, int64(time.Minute))
	slot := rapid.Custom(func(t *rapid.T) writeback.Slot {
		instant := func(name string) monotonic.Instant { return monotonic.Instant(instants.Draw(t, name)) }
		return writeback.Slot{
			Beat: instant("beat"), Carried: instant("carried"), NotBefore: instant("not before"),
			Failures: rapid.Int32Range(0, 3).Draw(t, "failures"), State: writeback.Written,
			Known: rapid.Bool().Draw(t, "known"), Dirty: rapid.Bool().Draw(t, "dirty"),
			InFlight: rapid.Bool().Draw(t, "in flight"), Held: rapid.Bool().Draw(t, "held"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.SliceOf(slot).Draw(t, "slots")
		now := monotonic.Instant(instants.Draw(t, "now"))
		budget := rapid.IntRange(0, 10).Draw(t, "budget")
		before := slices.Clone(slots)
		policies := []writeback.Policy{policy}

		writes := writeback.Plan(now, policies, slots, budget)

		if !slices.Equal(before, slots) {
			t.Fatal("Plan changed what it read")
		}
		if len(writes) > budget {
			t.Fatalf("%d writes for a budget of %d", len(writes), budget)
		}
		checkUrgency(t, now, slots, writes)
		for _, w := range writeback.Plan(now, policies, slots, len(slots)) {
			slots[w.Slot] = slots[w.Slot].Started()
		}
		if again := writeback.Plan(now, policies, slots, len(slots)); len(again) > 0 {
			t.Fatalf("planned again what has started: %v", again)
		}
	})
}

// checkUrgency holds the plan against the naive rule: no slot that was left out is more urgent than one that was taken.
func checkUrgency(t *rapid.T, now monotonic.Instant, slots []writeback.Slot, writes []writeback.Write) {
	taken := map[int]bool{}
	for _, w := range writes {
		taken[int(w.Slot)] = true
	}
	for _, w := range writes {
		s := slots[w.Slot]
		if !s.Dirty || s.InFlight || s.Held || s.NotBefore > now || w.Beat != s.Beat {
			t.Fatalf("planned %+v for %+v at %v", w, s, now)
		}
		for i, other := range slots {
			idle := !other.Dirty || other.InFlight || other.Held || other.NotBefore > now
			if idle || taken[i] {
				continue
			}
			moreUrgent := !other.Known && s.Known ||
				other.Known == s.Known && other.Known && other.Carried < s.Carried ||
				other.Known == s.Known && !other.Known && other.Beat < s.Beat
			if moreUrgent {
				t.Fatalf("slot %d was left out for slot %d", i, w.Slot)
			}
		}
	}
}

func TestPlan_OfABacklogTakesTheMostUrgent(t *testing.T) {
	const holders, stride = 10_007, 7919 // coprime, so that the beats are a permutation
	slots := make([]writeback.Slot, holders)
	for i := range slots {
		slots[i] = writeback.Open(0, monotonic.Instant(i*stride%holders))
	}
	for _, budget := range []int{1, 2, 64, holders} {
		var got []monotonic.Instant
		for _, w := range writeback.Plan(at(1), []writeback.Policy{policy}, slots, budget) {
			got = append(got, w.Beat)
		}
		var want []monotonic.Instant
		for beat := range budget {
			want = append(want, monotonic.Instant(beat))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("budget %d (-want +got):\n%s", budget, diff)
		}
	}
}

// After a takeover every holder is due, and the beats wait while the owner of the slots plans.
func BenchmarkPlan_100kHoldersAllDue(b *testing.B) {
	slots := make([]writeback.Slot, 100_000)
	for i := range slots {
		slots[i] = writeback.Open(0, monotonic.Instant(i*7919%len(slots)))
	}
	b.ReportAllocs()
	for b.Loop() {
		writeback.Plan(at(20), []writeback.Policy{policy}, slots, 64)
	}
}

func BenchmarkPlan_130kHolders(b *testing.B) {
	slots := make([]writeback.Slot, 130_000)
	for i := range slots {
		slots[i] = written(0)
		if i%100 == 0 {
			slots[i] = slots[i].Heard(at(20))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		writeback.Plan(at(20), []writeback.Policy{policy}, slots, 256)
	}
}
