package nodewatch

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// tolerance is how long the owner may go without reading its clock: it does so with every tick, so whoever reads it later than
// that was not running.
const tolerance = 5 * Tick

// clock counts the time in which signs of life could be seen.
type clock struct {
	origin, last time.Time
	// blind is the time since origin that does not count.
	blind time.Duration
}

func startClock() clock {
	now := time.Now()
	return clock{origin: now, last: now}
}

// read returns the moment, and how much was lost since the read before.
func (c *clock) read() (now nodehealth.Moment, lost time.Duration) {
	read := time.Now()
	if gap := read.Sub(c.last); gap > tolerance {
		lost = gap - Tick
		c.blind += lost
	}
	c.last = read
	return nodehealth.Moment{Instant: monotonic.Instant(read.Sub(c.origin) - c.blind), Wall: read}, lost
}
