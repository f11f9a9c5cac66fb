package writeback

import (
	"hash/fnv"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Mode says what an object is written for.
type Mode uint8

const (
	// Mirror writes as the holder would itself: once per Renew while it beats.
	Mirror Mode = iota
	// Relaxed writes as seldom as readers allow who believe a Lease as long as it says: while the holder beats, its renewTime
	// never gets older than Renew.
	Relaxed
	// OnChange writes when the holder dies and when it comes back, and once per Renew so that nobody takes the object for
	// forgotten.
	OnChange
)

// Policy is how the objects of one class are written.
type Policy struct {
	Mode Mode
	// Renew is a time between writes, or an age: see Mode.
	Renew time.Duration
	// Duration is how long after its renewTime readers take the holder of an object for alive: leaseDurationSeconds.
	Duration time.Duration
}

const (
	// jitter is by which part of Renew the periods of two holders differ at most; upstream's client has the same.
	jitter = 25
	// scatter, which is odd and by chance, keeps those apart who have similar phases: what was spread by the phase alone would
	// stay together in groups of like periods.
	scatter = 40503
	// margin is the part of Renew that Relaxed keeps for the write itself.
	margin = 16
	// glance is after which part of Renew a holder is looked at again that has not beaten since its object was written.
	glance = 16
)

// A glance is neither a busy wait nor noticed late.
const (
	minGlance = 100 * time.Millisecond
	maxGlance = 5 * time.Second
)

// next is when an object is due again after the write that a plan of the given instant began and that carried beat.
func (p Policy) next(planned, beat monotonic.Instant, phase uint16) monotonic.Instant {
	swing := share(p.Renew/jitter, phase*scatter)
	if p.Mode == Relaxed {
		return beat.Add(p.Renew - p.Renew/margin - swing)
	}
	return planned.Add(p.Renew + swing)
}

func (p Policy) glance() time.Duration { return min(max(p.Renew/glance, minGlance), maxGlance) }

// share is the part of d that a phase stands for: from nothing up to, but not including, all of it.
func share(d time.Duration, phase uint16) time.Duration {
	return time.Duration(float64(d) * float64(phase) / (1 << 16))
}

// Phase spreads holders evenly over 65,536 places by their names, on every replica in the same way.
func Phase(name string) uint16 {
	hash := fnv.New32a()
	hash.Write([]byte(name))
	sum := hash.Sum32()
	return uint16(sum>>16) ^ uint16(sum)
}

// The pause after a failed attempt doubles from minBackoff to maxBackoff.
const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 7 * time.Second
)

// Backoff is the pause after the given number of failures in a row.
func Backoff(failures int32) time.Duration {
	doublings := min(max(failures-1, 0), 16)
	return min(minBackoff<<doublings, maxBackoff)
}
