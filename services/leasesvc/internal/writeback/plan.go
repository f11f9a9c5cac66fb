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
// compact slots ten times a second costs less than keeping them in order at every beat.
func Plan(now monotonic.Instant, policies []Policy, slots []Slot, budget int) []Write {
	var due []Write
	for i := range slots {
		if s := &slots[i]; s.mayStart(now) {
			due = append(due, s.write(uint32(i), policies))
		}
	}
	slices.SortFunc(due, urgency)
	return due[:min(len(due), max(budget, 0))]
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
