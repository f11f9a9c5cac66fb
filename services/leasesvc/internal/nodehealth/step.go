package nodehealth

import (
	"fmt"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// StepKind is what a step does. Smaller kinds are more urgent.
type StepKind uint8

const (
	// RemoveNoExecute removes NoExecute taints, for which Pods may wait to be evicted.
	RemoveNoExecute StepKind = iota
	// MarkUnknown sets conditions to Unknown.
	MarkUnknown
	// AddNoExecute adds a NoExecute taint, or replaces one by the other.
	AddNoExecute
	// SyncTaints corrects NoSchedule taints and labels.
	SyncTaints
)

func (k StepKind) String() string {
	return [...]string{"remove-no-execute", "mark-unknown", "add-no-execute", "sync-taints"}[k]
}

// Step is one write to a Node: of its status for MarkUnknown, of taints and labels for the other
// kinds.
type Step struct {
	Kind StepKind
	// Node is the version that the step was decided from. The write is guarded by it.
	Node *corev1.Node
	Zone string
	// Conditions are to be set, for MarkUnknown. Conditions of other types stay.
	Conditions []corev1.NodeCondition
	// Lease is that from which MarkUnknown was decided. It is read again before the write.
	Lease Sample
	// CutOff says that MarkUnknown was decided although the session of the Node is alive, with an
	// agent in AgentMode.
	CutOff    bool
	AgentMode string
	// Taints are all taints of the Node after the step. It is nil if they stay, and for
	// MarkUnknown.
	Taints *[]corev1.Taint
	// Labels are to be set.
	Labels map[string]string
	// RateLimited says that the step uses the NoExecute rate of the zone.
	RateLimited bool
	// NeedsShard says that the step needs the term of the Node's shard, NeedsZones that it needs
	// the term of the zones. At least one is set. A step that needs both is one write, as long as
	// this replica holds both terms.
	NeedsShard, NeedsZones bool
	// Shard is the shard of the Node.
	Shard int
	// Reason is for logs and decisions.
	Reason string
	// InputAge is the age of the last sign of life, for MarkUnknown; 0 if it is not known.
	InputAge time.Duration
}

// StillCutOff returns whether nothing has changed of why the Node is marked although its session is
// alive: the session has the same kind of agent, and one that forwards the requests of its kubelet
// still reports that they fail.
func (s *Step) StillCutOff(agent unique.Handle[session.Agent], reported bool) bool {
	return s.CutOff && session.ModeOf(agent) == s.AgentMode && (s.AgentMode != session.ModeEndpoint || reported)
}

// candidate is a step that may be chosen. It is small, because thousands may wait for a later pass.
type candidate struct {
	kind StepKind
	node *NodeState
	// silence is why the Node is marked, for MarkUnknown.
	silence Assessment
}

// markUnknown is the step of a silent node.
func (c *candidate) markUnknown(now Moment) Step {
	s := c.node
	return Step{
		Kind: MarkUnknown, Node: s.Node, Zone: s.traits.zone, Shard: s.Ownership.Shard, NeedsShard: true, Lease: sampleOf(s),
		CutOff: c.silence.CutOff, AgentMode: session.ModeOf(s.signs.agent),
		Conditions: unknownConditions(s.Node, now.Wall), Reason: c.silenceReason(now.Instant), InputAge: c.silenceAge(now.Instant),
	}
}

// noExecuteKind is the kind of a step that changes taints.
func noExecuteKind(noExecute taintChange) StepKind {
	switch {
	case len(noExecute.add) > 0:
		return AddNoExecute
	case len(noExecute.remove) > 0:
		return RemoveNoExecute
	}
	return SyncTaints
}

// syncTaints is the step that changes the NoExecute taints as given, and corrects the NoSchedule
// taints and labels of a Node of a held shard.
func syncTaints(now Moment, s *NodeState, noExecute taintChange, rateLimited bool) Step {
	step := Step{
		Kind: noExecuteKind(noExecute), Node: s.Node, Zone: s.traits.zone, Shard: s.Ownership.Shard, RateLimited: rateLimited,
		NeedsShard: s.Ownership.Held && s.traits.drifted, NeedsZones: !noExecute.empty(),
	}
	var noSchedule taintChange
	if step.NeedsShard {
		noSchedule, step.Labels = noScheduleTaints(step.Node), missingLabels(step.Node.Labels)
	}
	if change := noSchedule.and(noExecute); !change.empty() {
		taints := change.applied(step.Node.Spec.Taints, now.Wall)
		step.Taints = &taints
	}
	step.Reason = taintReason(step, noSchedule, noExecute)
	return step
}

func taintReason(step Step, noSchedule, noExecute taintChange) string {
	var reason string
	for _, part := range [...]struct {
		verb   string
		taints []corev1.Taint
	}{{"add", noExecute.add}, {"remove", noExecute.remove}, {"add", noSchedule.add}, {"remove", noSchedule.remove}} {
		for _, t := range part.taints {
			reason += fmt.Sprintf("%s %s:%s, ", part.verb, t.Key, t.Effect)
		}
	}
	if len(step.Labels) > 0 {
		reason += "labels follow the stable ones, "
	}
	if ready := ConditionOf(step.Node, corev1.NodeReady); ready != nil {
		return reason + "as Ready is " + string(ready.Status)
	}
	return reason + "as there is no Ready condition"
}

func (c *candidate) silenceAge(now monotonic.Instant) time.Duration {
	if c.silence.Heard == 0 {
		return 0
	}
	return now.Sub(c.silence.Heard)
}

func (c *candidate) silenceReason(now monotonic.Instant) string {
	since := func(i monotonic.Instant) time.Duration { return now.Sub(i).Round(time.Millisecond) }
	switch a := c.silence; {
	case a.CutOff:
		return fmt.Sprintf("its agent lives, and its kubelet has reached no kube-apiserver for %v: the last sign was of its %v", since(a.Heard), a.By)
	case a.By == SessionBeat && c.node.signs.session == session.Expired:
		return fmt.Sprintf("its session expired %v ago, and there is no other sign of life", since(c.node.signs.expired))
	case a.By == GraceStart:
		return fmt.Sprintf("no sign of life in the %v that count", since(a.Heard))
	default:
		return fmt.Sprintf("no sign of life for %v, the last was of its %v", since(a.Heard), a.By)
	}
}
