package slicecontroller

import "time"

const (
	// contentionWindow is how soon after a write of ours another writer must change the slice to
	// count as reverting it.
	contentionWindow = 30 * time.Second
	// maxReverts is how many writes in a row may be reverted before updates are suspended.
	maxReverts = 3
	// Updates are suspended for minSuspension, then twice as long each time, up to maxSuspension.
	minSuspension = 30 * time.Second
	maxSuspension = 16 * time.Minute
	unknownWriter = "unknown"
)

// contention detects another writer that keeps reverting our writes to the slices of a Service,
// such as a second controller. Single changes of another writer are no contention, however often
// they happen. The zero value has seen no change. It reads no clock.
type contention struct {
	// reverts counts reverted writes in a row, the last one at latest.
	reverts    int
	latest     time.Time
	lastWriter string
	// suspension is the length of the last suspension, and until its end.
	suspension time.Duration
	until      time.Time
	// since is the beginning of the first of the suspensions.
	since time.Time
}

// recordRevert records that another writer changed or deleted a slice that we wrote at the time
// written. It returns whether a suspension begins.
func (c *contention) recordRevert(written, now time.Time, writer string) (suspended bool) {
	if written.IsZero() || now.Sub(written) > contentionWindow || now.Before(c.until) {
		return false
	}
	if now.Sub(c.latest) > contentionWindow && now.Sub(c.until) > contentionWindow {
		*c = contention{}
	}
	c.reverts++
	c.latest = now
	if c.lastWriter = writer; writer == "" {
		c.lastWriter = unknownWriter
	}
	if c.reverts < maxReverts && c.suspension == 0 {
		return false
	}
	c.reverts = 0
	if c.suspension == 0 {
		c.since = now
	}
	c.suspension = min(max(2*c.suspension, minSuspension), maxSuspension)
	c.until = now.Add(c.suspension)
	return true
}

// suspendedFor returns how long updates stay suspended; 0 if they are not.
func (c *contention) suspendedFor(now time.Time) time.Duration { return max(c.until.Sub(now), 0) }

// writer names the other writer during a suspension, and afterwards until it is clear whether the
// writer is still active. It returns "" if there is none.
func (c *contention) writer(now time.Time) string {
	if c.suspension == 0 || now.Sub(c.until) > contentionWindow {
		return ""
	}
	return c.lastWriter
}
