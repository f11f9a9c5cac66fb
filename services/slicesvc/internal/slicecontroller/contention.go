package slicecontroller

import (
	"time"

	"github.com/trivet-dev/trivet/internal/backoff"
)

const (
	// contentionWindow is how soon after a write of ours another writer must change the slice to
	// count as reverting it.
	contentionWindow = 30 * time.Second
	// maxReverts is how many writes in a row may be reverted before there is contention.
	maxReverts = 3
	// The reaction to a change of the other writer waits for minReaction, then twice as long each
	// time, up to maxReaction. So contention about endpoints costs one write per second and
	// Service, and a removal that the other writer reverts is repeated within a second.
	minReaction = 100 * time.Millisecond
	maxReaction = time.Second
	// Changes without an effect on traffic wait for minPause, then twice as long each time, up to
	// maxPause. So contention about labels, zones and hints costs one write per minute.
	minPause      = time.Second
	maxPause      = time.Minute
	unknownWriter = "unknown"
	// reportContentionEvery is the interval of Events about contention that lasts.
	reportContentionEvery = 10 * time.Minute
)

// contention detects another writer that keeps reverting our writes to the slices of a Service,
// such as a second controller. Single changes of another writer are no contention, however often
// they happen. The zero value has seen no change. It reads no clock.
type contention struct {
	// reverts counts reverted writes in a row, the last one at latest.
	reverts    int
	latest     time.Time
	lastWriter string
	// since is when contention began; zero if there is none. reported is when recordRevert last
	// asked to report it.
	since, reported time.Time
	// pause is the length of the last pause, and until its end.
	pause time.Duration
	until time.Time
}

// recordRevert records that another writer changed or deleted a slice that we wrote at the time
// written. It returns whether contention is to be reported.
func (c *contention) recordRevert(written, now time.Time, writer string) (report bool) {
	if written.IsZero() || now.Sub(written) > contentionWindow {
		return false
	}
	if c.over(now) {
		*c = contention{}
	}
	c.reverts++
	c.latest = now
	if c.lastWriter = writer; writer == "" {
		c.lastWriter = unknownWriter
	}
	if c.reverts < maxReverts {
		return false
	}
	if c.since.IsZero() {
		c.since = now
	}
	if !now.Before(c.until) {
		c.pause = backoff.Exponential{Min: minPause, Max: maxPause}.Next(c.pause)
		c.until = now.Add(c.pause)
	}
	if now.Sub(c.reported) < reportContentionEvery {
		return false
	}
	c.reported = now
	return true
}

// over returns whether the other writer had the time to revert a write, and did not.
func (c *contention) over(now time.Time) bool {
	return now.Sub(c.latest) > contentionWindow && now.Sub(c.until) > contentionWindow
}

// reactionDelay returns how long the reaction to a change of the other writer waits. Changes of
// Pods, Nodes and the Service do not wait.
func (c *contention) reactionDelay(now time.Time) time.Duration {
	if c.since.IsZero() || c.over(now) {
		return 0
	}
	doublings := min(c.reverts-maxReverts, 10) // far beyond maxReaction
	return min(minReaction<<doublings, maxReaction)
}

// pausedFor returns how long changes without an effect on traffic stay paused; 0 if they are not.
func (c *contention) pausedFor(now time.Time) time.Duration { return max(c.until.Sub(now), 0) }

// writer names the other writer until it is clear that it has stopped. It returns "" if there is no
// contention.
func (c *contention) writer(now time.Time) string {
	if c.since.IsZero() || c.over(now) {
		return ""
	}
	return c.lastWriter
}
