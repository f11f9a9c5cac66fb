package sessioncontroller

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// reportersInterval is the time between two looks for reporters that have gone silent.
const reportersInterval = time.Second

// reporters are the agents of Expired sessions whose beats still arrive: the agent lives, and its
// holder was observed too long ago.
type reporters struct {
	// heard has the time of the last beat by slot.
	heard  map[uint32]monotonic.Instant
	lookAt monotonic.Instant
}

func newReporters() reporters { return reporters{heard: map[uint32]monotonic.Instant{}} }

// updateReporter takes an accepted beat, and returns whether readers see a change.
func (c *Controller) updateReporter(slot uint32, received monotonic.Instant) (changed bool) {
	last, known := c.reporters.heard[slot]
	s, _ := c.table.At(slot)
	switch lives := s.State == session.Expired && c.now().Sub(received) < c.reporterSilence(s); {
	case lives:
		c.reporters.heard[slot] = max(last, received)
		return !known
	case s.State != session.Expired:
		delete(c.reporters.heard, slot)
		return known
	}
	return false
}

// reporterAtExpiry finds out whether the agent of a session that expires is heard.
func (c *Controller) reporterAtExpiry(now monotonic.Instant, slot uint32) {
	s, _ := c.table.At(slot)
	report := c.reports.bySlot[slot]
	if report != nil && report.received > s.LastBeat && now.Sub(report.received) < c.reporterSilence(s) {
		c.reporters.heard[slot] = report.received
	}
}

// dropSilentReporters drops the reporters that have missed two beats.
func (c *Controller) dropSilentReporters(now monotonic.Instant) {
	if now < c.reporters.lookAt {
		return
	}
	c.reporters.lookAt = now.Add(reportersInterval)
	for slot, heard := range c.reporters.heard {
		if s, _ := c.table.At(slot); now.Sub(heard) >= c.reporterSilence(s) {
			delete(c.reporters.heard, slot)
			c.changes.touch(slot)
		}
	}
}

// reporterSilence is the silence after which the agent of a session counts as silent too.
func (c *Controller) reporterSilence(s session.Session) time.Duration {
	return c.cfg.Classes[s.Holder.Key.Class].Session.Suspect
}
