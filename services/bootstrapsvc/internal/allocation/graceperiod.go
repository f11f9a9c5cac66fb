package allocation

import (
	"fmt"
	"time"
)

// GracePeriods say for how long the index must see a finding without a gap before the finding is
// open.
type GracePeriods struct {
	// Missing applies to what is used and not allocated, because the watches of Services and of
	// allocations are not in step.
	Missing time.Duration
	// Wrong applies to a wrong parent, to wrong labels, and to what no range contains.
	Wrong time.Duration
	// Unused applies to what is allocated and not used, and to what is being deleted. It must
	// exceed the longest request to kube-apiserver, because a request allocates before it uses.
	Unused time.Duration
	// Observations is how many passes must have observed an unused subject, each at least Interval
	// after the one before. They take (Observations-1)*Interval, however short Unused is.
	Observations int
	Interval     time.Duration
}

// DefaultGracePeriods returns 250 ms for what is missing, one second for what is wrong, and 65
// seconds with three observations 20 seconds apart for what is unused. kube-apiserver aborts a
// request after 60 seconds.
func DefaultGracePeriods() GracePeriods {
	return GracePeriods{
		Missing:      250 * time.Millisecond,
		Wrong:        time.Second,
		Unused:       65 * time.Second,
		Observations: 3,
		Interval:     20 * time.Second,
	}
}

// graceKind says which of the GracePeriods applies to a finding, and why the index must wait.
type graceKind uint8

const (
	// graceNone: the finding follows from a single object.
	graceNone graceKind = iota
	// graceMissing: two watches may be out of step.
	graceMissing
	// graceWrong: two watches may be out of step, and the repair takes something away.
	graceWrong
	// graceUnused: a request in flight may be about to use the subject.
	graceUnused
	// graceKept: what deletes the object may be about to let it go.
	graceKept
)

// of returns the length of a grace period and the number of observations that it needs.
func (p GracePeriods) of(kind graceKind) (time.Duration, int) {
	switch kind {
	case graceMissing:
		return p.Missing, 0
	case graceWrong:
		return p.Wrong, 0
	case graceUnused, graceKept:
		return p.Unused, p.Observations
	default:
		return 0, 0
	}
}

func (p GracePeriods) unsafeReason(kind graceKind) string {
	length, observations := p.of(kind)
	if observations == 0 {
		return fmt.Sprintf("it waits until it has been so for %s, for what is watched may be behind", length)
	}
	return fmt.Sprintf("it waits until no service has used it for %s, watched without a gap, and %d passes saw it: "+
		"a request under way may be about to use it", length, observations)
}

// gracePeriod records for how long a finding was seen without a gap.
type gracePeriod struct {
	since, lastObserved time.Time
	observations        int
}

func (g gracePeriod) observe(now time.Time, interval time.Duration) gracePeriod {
	if g.observations > 0 && now.Sub(g.lastObserved) < interval {
		return g
	}
	g.lastObserved = now
	g.observations++
	return g
}

// over reports whether the grace period is over. If not, it returns the earliest time at which it
// can be.
func (g gracePeriod) over(now time.Time, p GracePeriods, kind graceKind) (bool, time.Time) {
	length, observations := p.of(kind)
	earliest := g.since.Add(length)
	if left := observations - g.observations; left > 0 {
		if g.observations == 0 {
			left--
		}
		if byPasses := g.lastCounted().Add(time.Duration(left) * p.Interval); byPasses.After(earliest) {
			earliest = byPasses
		}
		return false, earliest
	}
	return !now.Before(earliest), earliest
}

// due returns when time or a pass can next change the grace period: when it is over, or when the
// next observation counts.
func (g gracePeriod) due(p GracePeriods, kind graceKind) time.Time {
	if length, observations := p.of(kind); g.observations >= observations {
		return g.since.Add(length)
	}
	return g.lastCounted().Add(p.Interval)
}

func (g gracePeriod) lastCounted() time.Time {
	if g.observations == 0 {
		return g.since
	}
	return g.lastObserved
}
