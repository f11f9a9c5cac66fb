package nodehealth

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// amend makes the step that brings taints and labels in line. Taints that evict are not added while blind.
func (p *pass) amend(s *Subject, blind bool) {
	schedule, labels := scheduleTaints(s.Node), missingLabels(s.Node.Labels)
	execute, queued := executeTaints(s.Node, s.traits.ready)
	if p.memory.down {
		execute, queued = removeExecute(s.Node), false
	}
	kind := Tidy
	switch {
	case len(execute.add) > 0 && blind:
		execute, queued = taintChange{}, false
	case len(execute.add) > 0:
		kind = Banish
	case len(execute.remove) > 0:
		kind = Restore
	}
	step := Step{Kind: kind, Node: s.Node, Zone: s.traits.zone, Counted: queued}
	p.steps = append(p.steps, p.filled(step, schedule, execute, labels))
}

func (p *pass) filled(step Step, schedule, execute taintChange, labels map[string]string) Step {
	step.Labels = labels
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
