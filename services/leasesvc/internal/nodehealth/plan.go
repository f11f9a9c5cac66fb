package nodehealth

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Moment is one moment in both notions of time: Instant decides, Wall is written into objects.
type Moment struct {
	Instant monotonic.Instant
	Wall    time.Time
}

// Kind is what a step does, in the order of urgency.
type StepKind uint8

const (
	// Restore takes NoExecute taints off, which pods are waiting to be evicted for.
	RemoveNoExecute StepKind = iota
	// Declare sets conditions to Unknown.
	MarkUnknown
	// Banish puts a NoExecute taint on, or swaps one for the other.
	AddNoExecute
	// Tidy brings NoSchedule taints and labels in line.
	SyncTaints
)

func (k StepKind) String() string { return [...]string{"restore", "declare", "banish", "tidy"}[k] }

// Step is what one Node needs, in one write of its status or of the rest.
type Step struct {
	Kind StepKind
	// Node is the version that was decided from; the write is guarded by it.
	Node *corev1.Node
	Zone string
	// Conditions to set, for Declare; those of other types stay.
	Conditions []corev1.NodeCondition
	// LeaseVersion is the Lease that the declaration rests on, to be read again before.
	LeaseVersion string
	// Taints are all of the Node's taints after the step, for all but Declare; nil when they stay as they are.
	Taints *[]corev1.Taint
	// Labels to set.
	Labels map[string]string
	// Counted tells that the node took its zone's turn.
	RateLimited bool
	// OfShard tells that the step needs the term of the Node's shard, OfZones that it needs the one of the zones. One of them is
	// set at least; a step that needs both is made in one write as long as both terms are held here.
	NeedsShard, NeedsZones bool
	// Shard is that of the Node.
	Shard int
	// Reason says why, for people.
	Reason string
}

// Plan is what a pass found and what is to be done.
type Plan struct {
	// Steps are for different nodes, the most urgent first.
	Steps []Step
	// Check is nil when none is due.
	SelfCheck *SelfCheck
	// Held is how many nodes are silent and not declared, because the process is blind or many fell silent together.
	Held int
	// Doubted says of which zones and shards many nodes fell silent together.
	MassSilence MassSilence
	// Zones are ordered by name. Every replica that sees the same Nodes counts the same.
	Zones []Zone
	// Counts is how many of the nodes in charge here there are of each Health.
	Counts [Dead + 1]int
	// Dead are the nodes in charge here that were declared and not heard since, so that nobody speaks for their pods.
	Dead []*NodeState
}

// Mandate is what a pass may do.
type Authority struct {
	// Steps is how many it may make; the others come up again in the next pass.
	MaxSteps int
	// Zones tells that the term of the zones is held here: NoExecute taints are set and removed, for all Nodes.
	HoldsZones bool
}

// Plan decides for all subjects at once: conditions, NoSchedule taints and labels for the Nodes in charge here, and with the
// mandate for zones the NoExecute taints of all.
func (r Rules) Plan(now Moment, m ClusterState, subjects []NodeState, mandate Authority) (Plan, ClusterState) {
	p := pass{Rules: r, now: now, mandate: mandate, memory: m.caughtUp(subjects), zones: map[string]*tally{}, shards: map[int]*cohort{}}
	for i := range subjects {
		p.survey(&subjects[i])
	}
	p.count()
	p.doubt()
	p.decide()
	p.act()
	p.check(subjects)
	return p.plan, p.memory
}
