package session_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

func TestSlab_ValuesDoNotMove(t *testing.T) {
	var s session.Slab[int]
	s.Extend(1)
	first := s.At(0)
	*first = 7
	s.Extend(3 * session.BlockSize)
	*s.At(3*session.BlockSize - 1) = 9
	s.Extend(2)
	if got := s.At(0); got != first || *got != 7 {
		t.Errorf("the first value moved to %p with %d", got, *got)
	}
	if s.Len() != 3*session.BlockSize || *s.At(3*session.BlockSize - 1) != 9 {
		t.Errorf("length %d, last value %d", s.Len(), *s.At(3*session.BlockSize - 1))
	}
}

const granularity = 10 * time.Millisecond

// fire returns the slots that the wheel fires at now, at most limit at a time.
func fire(w *session.Wheel, now monotonic.Instant, limit int) map[uint32]bool {
	fired := map[uint32]bool{}
	for more := true; more; {
		more = w.Fire(now, limit, func(slot uint32) { fired[slot] = true })
	}
	return fired
}

func TestWheel_FiresEachFiledSlotOnceAfterItsDeadline(t *testing.T) {
	const buckets = 8
	rapid.Check(t, func(t *rapid.T) {
		w, now := session.NewWheel(granularity, buckets), monotonic.Instant(0)
		deadlines := map[uint32]monotonic.Instant{}
		slots := rapid.Uint32Range(0, 5)
		t.Repeat(map[string]func(*rapid.T){
			"file": func(t *rapid.T) {
				slot := slots.Draw(t, "slot")
				// Later deadlines than one turn of the wheel fire early; the caller files them
				// again.
				deadline := now.Add(time.Duration(rapid.Int64Range(-50, 60).Draw(t, "deadline")) * time.Millisecond)
				w.File(slot, deadline)
				deadlines[slot] = max(deadline, now)
			},
			"remove": func(t *rapid.T) {
				slot := slots.Draw(t, "slot")
				delete(deadlines, slot)
				w.Remove(slot)
			},
			"fire": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(0, 200).Draw(t, "wait")) * time.Millisecond)
				for slot := range fire(w, now, rapid.IntRange(1, 3).Draw(t, "limit")) {
					deadline, filed := deadlines[slot]
					if !filed || deadline > now {
						t.Fatalf("at %v: fired slot %d, filed %t for %v", now, slot, filed, deadline)
					}
					delete(deadlines, slot)
				}
				for slot, deadline := range deadlines {
					if now.Sub(deadline) >= granularity {
						t.Fatalf("at %v: slot %d, due at %v, has not fired", now, slot, deadline)
					}
				}
			},
		})
	})
}

func TestWheel_SlotFiledDuringFireFiresLater(t *testing.T) {
	w := session.NewWheel(granularity, 8)
	w.File(3, 0)
	visits := 0
	w.Fire(0, 10, func(slot uint32) {
		visits++
		w.File(slot, 0)
	})
	if fired := fire(w, monotonic.Instant(granularity), 10); visits != 1 || !fired[3] {
		t.Errorf("%d visits, then %v; want one, then slot 3", visits, fired)
	}
}
