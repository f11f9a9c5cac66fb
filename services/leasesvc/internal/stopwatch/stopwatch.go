package stopwatch

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Watch counts from its start. It belongs to one goroutine, which reads it with every tick.
type Watch struct {
	tick, tolerance time.Duration
	origin, last    time.Time
	// blind is the time since origin that does not count.
	blind time.Duration
}

// Start returns a watch that is read every tick. Whoever reads it later than the tolerance was not running: then all but one
// tick of the gap is lost.
func Start(tick, tolerance time.Duration) Watch {
	now := time.Now()
	return Watch{tick: tick, tolerance: tolerance, origin: now, last: now}
}

// Read returns the time, and how much was lost since the read before.
func (w *Watch) Read() (now monotonic.Instant, lost time.Duration) {
	read := time.Now()
	if gap := read.Sub(w.last); gap > w.tolerance {
		lost = gap - w.tick
		w.blind += lost
	}
	w.last = read
	return monotonic.Instant(read.Sub(w.origin) - w.blind), lost
}

// Wall says when by the wall clock an instant was or will be, where now is what Read returned last. Its error is at most
// what the wall clock is stepped in between.
func (w *Watch) Wall(now, instant monotonic.Instant) time.Time {
	return w.last.Add(instant.Sub(now))
}
