package keeper

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// tolerance is how long the owner may go without reading its clock. It reads it with every tick of the wheel, so whoever
// reads it later than that was not running, and neither was the receipt of beats.
const tolerance = 10 * session.Granularity

// clock counts the time in which beats could be received.
type clock struct {
	origin, last time.Time
	// blind is the time since origin that does not count.
	blind time.Duration
}

func startClock() clock {
	now := time.Now()
	return clock{origin: now, last: now}
}

// read returns the time, and how much was lost since the read before.
func (c *clock) read() (now monotonic.Instant, lost time.Duration) {
	read := time.Now()
	if gap := read.Sub(c.last); gap > tolerance {
		lost = gap - session.Granularity
		c.blind += lost
	}
	c.last = read
	return monotonic.Instant(read.Sub(c.origin) - c.blind), lost
}

// wall says when by the wall clock an instant was or will be. Its error is at most what the wall clock is stepped in between.
func (c *clock) wall(now, instant monotonic.Instant) time.Time {
	return c.last.Add(instant.Sub(now))
}
