package allocation

import "time"

// GracePeriods says for how long a thing must have been wrong, seen without a gap, before it is open.
type GracePeriods struct {
	// Missing is for what is used and not allocated: the watches of Services and of allocations are not in step.
	Missing time.Duration
	// Wrong is for what is allocated in a wrong name or with wrong labels, and for what no range holds.
	Wrong time.Duration
	// Unused is for what is allocated and not used. It must be longer than a request to kube-apiserver can take, because
	// allocation comes before use.
	Unused time.Duration
	// Observations is how many passes must have seen it unused, each Apart from the one before.
	Observations int
	Interval     time.Duration
}

// DefaultGracePeriods is 250 ms for what is missing, a second for what is wrong, and 65 seconds and three sightings twenty
// seconds apart for what is unused: kube-apiserver gives up a request after 60 seconds.
func DefaultGracePeriods() GracePeriods {
	return GracePeriods{
		Missing:      250 * time.Millisecond,
		Wrong:        time.Second,
		Unused:       65 * time.Second,
		Observations: 3,
		Interval:     20 * time.Second,
	}
}

// graceKind is what speaks against believing a finding at once.
type graceKind uint8

const (
	// graceNone: it follows from one thing that was read.
	graceNone graceKind = iota
	// graceMissing: two watches may be out of step by a moment.
	graceMissing
	// graceWrong: the same, and mending it takes something away first.
	graceWrong
	// graceUnused: a request under way may be about to use it.
	graceUnused
)

// of is how long a doubt lasts, and how many sightings must end it.
func (p GracePeriods) of(d graceKind) (time.Duration, int) {
	switch d {
	case graceMissing:
		return p.Missing, 0
	case graceWrong:
		return p.Wrong, 0
	case graceUnused:
		return p.Unused, p.Observations
	default:
		return 0, 0
	}
}

// gracePeriod is how long something has been seen without a gap. A new one begins when anything contradicts it.
type gracePeriod struct {
	since, last  time.Time
	observations int
}

// observe counts a pass, unless the one before is too near.
func (r gracePeriod) observe(now time.Time, apart time.Duration) gracePeriod {
	if r.observations > 0 && now.Sub(r.last) < apart {
		return r
	}
	r.last = now
	r.observations++
	return r
}

// over tells whether the doubt has ended, and else when it can end at the earliest.
func (r gracePeriod) over(now time.Time, p GracePeriods, d graceKind) (bool, time.Time) {
	length, sightings := p.of(d)
	earliest := r.since.Add(length)
	if left := sightings - r.observations; left > 0 {
		if r.observations == 0 {
			left--
		}
		if byPasses := r.lastCounted().Add(time.Duration(left) * p.Interval); byPasses.After(earliest) {
			earliest = byPasses
		}
		return false, earliest
	}
	return !now.Before(earliest), earliest
}

// nextDue is when anything can change by time or by a pass: when the doubt ends, or the next pass counts.
func (r gracePeriod) nextDue(p GracePeriods, d graceKind) time.Time {
	length, sightings := p.of(d)
	switch {
	case r.observations >= sightings:
		return r.since.Add(length)
	default:
		return r.lastCounted().Add(p.Interval)
	}
}

func (r gracePeriod) lastCounted() time.Time {
	if r.observations == 0 {
		return r.since
	}
	return r.last
}
