// Package monotonic defines the time of the domain packages, and the clock that their controllers
// read.
//
// Promise: an Instant never follows the wall clock, so a step of that clock expires and revives no
// holder. A pause of the process (a stopped process, a starved machine, a suspended host) does not
// count as elapsed time. So no deadline passes while nothing could be received.
package monotonic

import (
	"sync/atomic"
	"time"
)

// Instant is the time since an origin, in nanoseconds. Instants of different origins must not be
// compared.
type Instant int64

// Add returns the instant d after i.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// Clock is a clock that stands still while the process does not run. It counts from StartClock. It
// belongs to one goroutine, which must read it once per tick. Other goroutines use its Reader.
type Clock struct {
	tick, tolerance time.Duration
	origin, last    time.Time
	// paused is the time since origin that does not count.
	paused time.Duration
	// late is the time by which readings came later than a tick after the one before.
	late   time.Duration
	reader *Reader
}

// StartClock returns a Clock that is read once per tick. A gap between two readings that exceeds
// the tolerance is a pause: only one tick of it counts.
func StartClock(tick, tolerance time.Duration) Clock {
	now := time.Now()
	return Clock{tick: tick, tolerance: tolerance, origin: now, last: now, reader: &Reader{origin: now, tolerance: tolerance}}
}

// Read returns the time, and the length of the pause since the last reading; 0 if there was none.
func (c *Clock) Read() (now Instant, paused time.Duration) {
	read := time.Now()
	gap := read.Sub(c.last)
	c.late += max(gap-c.tick, 0)
	if gap > c.tolerance {
		paused = gap - c.tick
		c.paused += paused
		c.reader.paused.Store(int64(c.paused))
	}
	c.last = read
	now = Instant(read.Sub(c.origin) - c.paused)
	c.reader.lastRead.Store(int64(now))
	return now, paused
}

// Late returns the time by which the owner read the Clock later than a tick after the reading
// before. It includes pauses, and also gaps within the tolerance, which count as elapsed time.
func (c *Clock) Late() time.Duration { return c.late }

// Reader returns the Clock's view for other goroutines.
func (c *Clock) Reader() *Reader { return c.reader }

// WallTime converts an instant to wall-clock time. now must be the result of the last Read. A step
// of the wall clock between the instant and now is the error of the result.
func (c *Clock) WallTime(now, instant Instant) time.Time {
	return c.last.Add(instant.Sub(now))
}

// Reader reads a Clock. It is safe for concurrent use.
type Reader struct {
	origin           time.Time
	tolerance        time.Duration
	lastRead, paused atomic.Int64 // stored by Clock.Read
}

// Now returns the time. It is at most the tolerance after the last Clock.Read, because only the
// owner detects a pause.
func (r *Reader) Now() Instant {
	// paused is loaded first, because Clock.Read stores it before lastRead.
	paused := r.paused.Load()
	latest := Instant(r.lastRead.Load()).Add(r.tolerance)
	return min(Instant(time.Since(r.origin)-time.Duration(paused)), latest)
}
