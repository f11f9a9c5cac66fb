package nodehealth

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// amend proposes to bring taints and labels in line, as far as they are anybody's here. Taints that evict are not added while
// blind.
func (p *pass) amend(s *NodeState, blind bool) {
	c := candidate{kind: SyncTaints, subject: s}
	if p.mandate.HoldsZones {
		c.execute, c.counted = p.execution(s, blind)
	}
	switch {
	case len(c.execute.add) > 0:
		c.kind = AddNoExecute
	case len(c.execute.remove) > 0:
		c.kind = RemoveNoExecute
	}
	p.candidates = append(p.candidates, c)
}

// amendment is the step of such a candidate.
func (p *pass) amendment(c *candidate) Step {
	s := c.subject
	return p.filled(Step{
		Kind: c.kind, Node: s.Node, Zone: s.traits.zone, Shard: s.Ownership.Shard, RateLimited: c.counted,
		NeedsShard: s.Ownership.Held && s.traits.drifted, NeedsZones: !c.execute.empty(),
	}, c.execute)
}

// execution is how a Node's NoExecute taints have to change now, and whether that takes its zone's turn.
func (p *pass) execution(s *NodeState, blind bool) (change taintChange, counted bool) {
	if p.memory.down {
		return removeExecute(s.Node), false
	}
	change, counted = executeTaints(s.Node, s.traits.ready)
	if blind && len(change.add) > 0 {
		return taintChange{}, false
	}
	return change, counted
}

func (p *pass) filled(step Step, execute taintChange) Step {
	var schedule taintChange
	if step.NeedsShard {
		schedule, step.Labels = scheduleTaints(step.Node), missingLabels(step.Node.Labels)
	}
	if change := schedule.and(execute); !change.empty() {
		taints := change.applied(step.Node.Spec.Taints, p.now.Wall)
		step.Taints = &taints
	}
	step.Reason = reasonOf(step, schedule, execute)
	return step
}

func reasonOf(step Step, schedule, execute taintChange) string {
	var reason string
	for _, part := range [...]struct {
		verb   string
		taints []corev1.Taint
	}{{"add", execute.add}, {"remove", execute.remove}, {"add", schedule.add}, {"remove", schedule.remove}} {
		for _, t := range part.taints {
			reason += fmt.Sprintf("%s %s:%s, ", part.verb, t.Key, t.Effect)
		}
	}
	if len(step.Labels) > 0 {
		reason += "labels follow the stable ones, "
	}
	if ready := conditionOf(step.Node, corev1.NodeReady); ready != nil {
		return reason + "as Ready is " + string(ready.Status)
	}
	return reason + "as there is no Ready condition"
}
