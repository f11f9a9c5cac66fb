package writeback

import (
	"cmp"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Policy is how often the objects of one class are written.
type Policy struct {
	// Renew is the time between two writes of an object whose holder beats.
	Renew time.Duration
	// Duration is how long after a write its readers take the holder for alive: leaseDurationSeconds.
	Duration time.Duration
}

// Reason says why an object is written.
type Reason uint8

const (
	// First: nothing was written for this holder in this term.
	First Reason = iota
	// Renewal: the object does not show the newest beat.
	Renewal
	// Retry: as before, and the last attempt failed.
	Retry
)

// String returns the reason's stable name.
func (r Reason) String() string {
	switch r {
	case First:
		return "first"
	case Renewal:
		return "renewal"
	case Retry:
		return "retry"
	}
	return "unknown"
}

// Write is one object to write.
type Write struct {
	// Slot is the index of the slot in what was planned from.
	Slot   uint32
	Reason Reason
	// Beat is what the object shall carry.
	Beat monotonic.Instant
	// Lapses is when readers stop believing the object as it stands; for a First write, the beat that waits longest is first.
	Lapses monotonic.Instant
}

// Plan returns at most budget writes that may start now, the most urgent first. It looks at every slot once: a scan of
// compact slots ten times a second costs less than keeping them in order at every beat. It holds no more than twice the budget
// at a time, because after a takeover every slot is due.
func Plan(now monotonic.Instant, policies []Policy, slots []Slot, budget int) []Write {
	if budget <= 0 {
		return nil
	}
	var due []Write
	crowded := false // due was cut, and nothing behind its place budget-1 can come first any more
	for i := range slots {
		s := &slots[i]
		if !s.mayStart(now) {
			continue
		}
		w := s.write(uint32(i), policies)
		if crowded && urgency(w, due[budget-1]) > 0 {
			continue
		}
		if due = append(due, w); len(due) == 2*budget {
			due, crowded = mostUrgent(due, budget), true
		}
	}
	return mostUrgent(due, budget)
}

// mostUrgent sorts due and cuts it down to the budget.
func mostUrgent(due []Write, budget int) []Write {
	slices.SortFunc(due, urgency)
	return due[:min(len(due), budget)]
}

func (s *Slot) mayStart(now monotonic.Instant) bool {
	return s.Dirty && !s.InFlight && !s.Held && s.NotBefore <= now
}

func (s *Slot) write(index uint32, policies []Policy) Write {
	w := Write{Slot: index, Beat: s.Beat}
	switch {
	case !s.Known:
		w.Reason, w.Lapses = First, s.Beat
		return w
	case s.Failures > 0:
		w.Reason = Retry
	default:
		w.Reason = Renewal
	}
	w.Lapses = s.Carried.Add(policies[s.Policy].Duration)
	return w
}

func urgency(a, b Write) int {
	return cmp.Or(
		compareFirst(a, b),
		cmp.Compare(a.Lapses, b.Lapses),
		cmp.Compare(a.Slot, b.Slot),
	)
}

func compareFirst(a, b Write) int {
	switch {
	case (a.Reason == First) == (b.Reason == First):
		return 0
	case a.Reason == First:
		return -1
	}
	return 1
}
