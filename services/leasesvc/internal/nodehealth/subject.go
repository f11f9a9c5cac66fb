package nodehealth

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Session is how the gRPC session of a node stands.
type Session uint8

const (
	// NoSession: the node does not beat here.
	NoSession Session = iota
	// SessionAlive: its beats arrive in time.
	SessionAlive
	// SessionSuspect: beats are missing.
	SessionSuspect
	// SessionExpired: the session's deadline has passed.
	SessionExpired
)

// Lease is what a Lease object says of its node. The zero Lease stands for an object that does not exist.
type Lease struct {
	// Version is the resourceVersion.
	Version string
	// RenewTime is what its writer put there; compared only with itself.
	RenewTime time.Time
}

// Observation is all that is known of a node at one moment.
type Observation struct {
	// Node is required and shared: nobody writes to it.
	Node    *corev1.Node
	Lease   Lease
	Session Session
	// Written is the resourceVersion to which the session's owner last wrote the Lease: such a change is an echo of the
	// session and no sign of life of its own.
	Written string
}

// Subject is what is known of one Node and what was seen of it before. The zero Subject has seen nothing.
type Subject struct {
	// Node is as last seen.
	Node *corev1.Node
	// Busy subjects are counted and get no step: a write is under way, or must wait after one that failed.
	Busy bool

	pulse  pulse
	traits traits
}

// See returns the Subject after an observation at the given time. An observation that repeats the last one changes nothing.
func (r Rules) See(now monotonic.Instant, s Subject, o Observation) Subject {
	if s.Node == nil || s.Node.UID != o.Node.UID {
		s.pulse = begun(now, o)
	} else {
		s.pulse = s.pulse.see(now, o)
	}
	if s.Node != o.Node {
		s.traits = r.traitsOf(o.Node)
	}
	s.Node = o.Node
	return s
}

// LeaseVersion is the resourceVersion of the Lease as last seen, empty when there was none.
func (s *Subject) LeaseVersion() string { return s.pulse.lease.version }

// traits are what a pass asks of every Node, worked out once for each version of it.
type traits struct {
	zone     string
	ready    corev1.ConditionStatus // empty without a Ready condition
	excluded bool
	// tainted tells that it has one of the NoExecute taints that are set here, execute whether they are as they should be.
	tainted bool
	execute execution
	// drifted tells that NoSchedule taints or labels are not what they should be.
	drifted bool
	// declared tells that the conditions are those of a node that was declared.
	declared bool
}

// execution is how a Node's NoExecute taints have to change.
type execution uint8

const (
	inLine execution = iota
	atOnce
	inTurn
)

func (r Rules) traitsOf(node *corev1.Node) traits {
	t := traits{zone: ZoneOf(node.Labels)}
	if ready := conditionOf(node, corev1.NodeReady); ready != nil {
		t.ready = ready.Status
	}
	for _, label := range r.Excluded {
		if _, has := node.Labels[label]; has {
			t.excluded = true
		}
	}
	for i := range node.Spec.Taints {
		t.tainted = t.tainted || isOurNoExecute(&node.Spec.Taints[i])
	}
	if change, queued := executeTaints(node, t.ready); queued {
		t.execute = inTurn
	} else if !change.empty() {
		t.execute = atOnce
	}
	schedule := scheduleTaints(node)
	t.drifted = !schedule.empty() || len(missingLabels(node.Labels)) > 0
	t.declared = allUnknown(node)
	return t
}
