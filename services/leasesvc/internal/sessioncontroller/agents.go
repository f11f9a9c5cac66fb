package sessioncontroller

import "unique"

// Agent is a program that sends beats, as it describes itself.
type Agent struct{ Name, Version, Mode string }

// updateAgent keeps the agent of a registration and returns whether readers see a change. Many
// sessions share one Agent.
func (c *Controller) updateAgent(slot uint32, agent Agent) (changed bool) {
	if agent == (Agent{}) {
		return false
	}
	kept := c.agents.At(slot)
	next := unique.Make(agent)
	changed = *kept != next
	*kept = next
	return changed
}
