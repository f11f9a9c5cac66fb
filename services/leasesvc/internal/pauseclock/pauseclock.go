package pauseclock

import (
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Watch counts from its start. It belongs to one goroutine, which reads it with every tick; its Face is for all.
type Clock struct {
	tick, tolerance time.Duration
	origin, last    time.Time
	// blind is the time since origin that does not count.
	paused time.Duration
	reader *Reader
}

// Start returns a watch that is read every tick. Whoever reads it later than the tolerance was not running: then all but one
// tick of the gap is lost.
func Start(tick, tolerance time.Duration) Clock {
	now := time.Now()
	return Clock{tick: tick, tolerance: tolerance, origin: now, last: now, reader: &Reader{origin: now, tolerance: tolerance}}
}

// Read returns the time, and how much was lost since the read before.
func (w *Clock) Read() (now monotonic.Instant, lost time.Duration) {
	read := time.Now()
	if gap := read.Sub(w.last); gap > w.tolerance {
		lost = gap - w.tick
		w.paused += lost
		w.reader.paused.Store(int64(w.paused))
	}
	w.last = read
	now = monotonic.Instant(read.Sub(w.origin) - w.paused)
	w.reader.lastRead.Store(int64(now))
	return now, lost
}

// Face is the watch as others see it. It may be looked at by any goroutine.
func (w *Clock) Reader() *Reader { return w.reader }

// Wall says when by the wall clock an instant was or will be, where now is what Read returned last. Its error is at most
// what the wall clock is stepped in between.
func (w *Clock) Wall(now, instant monotonic.Instant) time.Time {
	return w.last.Add(instant.Sub(now))
}

// Face shows the time of a Watch.
type Reader struct {
	origin           time.Time
	tolerance        time.Duration
	lastRead, paused atomic.Int64 // what the owner saw last, and what it has lost
}

// Look returns the time. Nobody but the owner knows whether the process stood still since it read the watch, so it is never
// further than the tolerance from what the owner read last.
func (f *Reader) Now() monotonic.Instant {
	// What is lost is read first: the owner stores it before the time from which it was taken.
	blind := f.paused.Load()
	latest := monotonic.Instant(f.lastRead.Load()).Add(f.tolerance)
	return min(monotonic.Instant(time.Since(f.origin)-time.Duration(blind)), latest)
}
