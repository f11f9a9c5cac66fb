package writeback

import (
	"hash/fnv"
	"time"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Mode is the rule by which a Lease is written.
type Mode uint8

const (
	// Mirror writes once per Renew while the holder beats, as the holder itself would.
	Mirror Mode = iota
	// Relaxed writes as seldom as leaseDurationSeconds allows: while the holder beats, the
	// renewTime is never older than Renew.
	Relaxed
	// OnChange writes when the holder expires or recovers, and once per Renew.
	OnChange
)

// Policy holds how the Leases of one class are written.
type Policy struct {
	Mode Mode
	// Renew is a period or a maximum age, see Mode.
	Renew time.Duration
	// Duration is leaseDurationSeconds: readers take the holder for alive this long after the
	// renewTime.
	Duration time.Duration
}

const (
	// jitterPart is the part of Renew by which two periods differ at most; it is the same in
	// upstream's client.
	jitterPart = 25
	// phaseMultiplier is odd and random. It decorrelates similar phases, which would otherwise keep
	// similar periods.
	phaseMultiplier = 40503
	// marginPart is the part of Renew that Relaxed reserves for the write.
	marginPart = 16
	// recheckPart is the part of Renew after which a slot is looked at again if its holder has not
	// beaten.
	recheckPart = 16
)

const (
	minRecheck = 100 * time.Millisecond
	maxRecheck = 5 * time.Second
)

// next returns when a Lease is due again after a write that was planned at the given instant and
// that carried beat.
func (p Policy) next(planned, beat monotonic.Instant, phase uint16) monotonic.Instant {
	jitter := fraction(p.Renew/jitterPart, phase*phaseMultiplier)
	if p.Mode == Relaxed {
		return beat.Add(p.Renew - p.Renew/marginPart - jitter)
	}
	return planned.Add(p.Renew + jitter)
}

func (p Policy) recheck() time.Duration { return min(max(p.Renew/recheckPart, minRecheck), maxRecheck) }

// fraction returns the part of d from 0 up to, but excluding, d that the phase selects.
func fraction(d time.Duration, phase uint16) time.Duration {
	return time.Duration(float64(d) * float64(phase) / (1 << 16))
}

// Phase spreads holders evenly over 65,536 values by name. It is the same on every replica.
func Phase(name string) uint16 {
	hash := fnv.New32a()
	hash.Write([]byte(name))
	sum := hash.Sum32()
	return uint16(sum>>16) ^ uint16(sum)
}

const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 7 * time.Second
)

// Backoff returns the pause after a number of consecutive failures. It doubles from 200 ms to 7 s.
func Backoff(failures int32) time.Duration {
	return backoff.Exponential{Min: minBackoff, Max: maxBackoff}.After(int(failures))
}
