package allocation

import "time"

// Patience says for how long a thing must have been wrong, seen without a gap, before it is open.
type Patience struct {
	// Missing is for what is used and not allocated: the watches of Services and of allocations are not in step.
	Missing time.Duration
	// Wrong is for what is allocated in a wrong name or with wrong labels, and for what no range holds.
	Wrong time.Duration
	// Unused is for what is allocated and not used. It must be longer than a request to kube-apiserver can take, because
	// allocation comes before use.
	Unused time.Duration
	// Sightings is how many passes must have seen it unused, each Apart from the one before.
	Sightings int
	Apart     time.Duration
}

// DefaultPatience is 250 ms for what is missing, a second for what is wrong, and 65 seconds and three sightings twenty
// seconds apart for what is unused: kube-apiserver gives up a request after 60 seconds.
func DefaultPatience() Patience {
	return Patience{
		Missing:   250 * time.Millisecond,
		Wrong:     time.Second,
		Unused:    65 * time.Second,
		Sightings: 3,
		Apart:     20 * time.Second,
	}
}

// doubt is what speaks against believing a finding at once.
type doubt uint8

const (
	// certain: it follows from one thing that was read.
	certain doubt = iota
	// missing: two watches may be out of step by a moment.
	missing
	// wrong: the same, and mending it takes something away first.
	wrong
	// unused: a request under way may be about to use it.
	unused
)

// of is how long a doubt lasts, and how many sightings must end it.
func (p Patience) of(d doubt) (time.Duration, int) {
	switch d {
	case missing:
		return p.Missing, 0
	case wrong:
		return p.Wrong, 0
	case unused:
		return p.Unused, p.Sightings
	default:
		return 0, 0
	}
}

// ripening is how long something has been seen without a gap. A new one begins when anything contradicts it.
type ripening struct {
	since, last time.Time
	sightings   int
}

// sight counts a pass, unless the one before is too near.
func (r ripening) sight(now time.Time, apart time.Duration) ripening {
	if r.sightings > 0 && now.Sub(r.last) < apart {
		return r
	}
	r.last = now
	r.sightings++
	return r
}

// ripe tells whether the doubt has ended, and else when it can end at the earliest.
func (r ripening) ripe(now time.Time, p Patience, d doubt) (bool, time.Time) {
	length, sightings := p.of(d)
	earliest := r.since.Add(length)
	if left := sightings - r.sightings; left > 0 {
		if r.sightings == 0 {
			left--
		}
		if byPasses := r.begun().Add(time.Duration(left) * p.Apart); byPasses.After(earliest) {
			earliest = byPasses
		}
		return false, earliest
	}
	return !now.Before(earliest), earliest
}

// next is when anything can change by time or by a pass: when the doubt ends, or the next pass counts.
func (r ripening) next(p Patience, d doubt) time.Time {
	length, sightings := p.of(d)
	switch {
	case r.sightings >= sightings:
		return r.since.Add(length)
	default:
		return r.begun().Add(p.Apart)
	}
}

func (r ripening) begun() time.Time {
	if r.sightings == 0 {
		return r.since
	}
	return r.last
}
