package sessioncontroller

import (
	"unique"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// updateAgent keeps the agent of a registration and returns whether readers see a change. Many
// sessions share one session.Agent.
func (c *Controller) updateAgent(slot uint32, agent session.Agent) (changed bool) {
	if agent == (session.Agent{}) {
		return false
	}
	kept := c.agents.At(slot)
	next := unique.Make(agent)
	changed = *kept != next
	*kept = next
	return changed
}

// leaveToKubelet leaves the Lease of a Node to its kubelet while the agent only probes the kubelet.
// After that, the Lease is read before it is written.
func (c *Controller) leaveToKubelet(now monotonic.Instant, slot uint32, key session.Key) {
	switch probes := session.ModeOf(*c.agents.At(slot)) == session.ModeProbe; {
	case probes && !c.cfg.Classes[key.Class].Unowned:
		c.writes.Leave(slot)
	case c.writes.Left(slot):
		c.entries.At(slot).lease = writeback.LeaseRecord{}
		c.writes.Take(now, slot)
	}
}
