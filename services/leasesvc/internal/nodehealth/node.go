package nodehealth

import (
	"cmp"
	"slices"
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
	// Duration is how long after a renewal its writer asks readers to wait for the next. Only people look at it: what decides is
	// the grace period, as with upstream's controller.
	Duration time.Duration
	// Ours tells that it was renewed last for a session, by this replica or another one. Such a renewal is an echo and no sign of
	// life of its own: the session's owner heard the node, and judges it.
	RenewedByUs bool
}

// Observation is all that is known of a node at one moment.
type Observation struct {
	// Node is required and shared: nobody writes to it.
	Node    *corev1.Node
	Lease   Lease
	Session Session
	// Written is the resourceVersion to which the session's owner last wrote the Lease here, which makes it Ours.
	WrittenVersion string
}

// Subject is what is known of one Node and what was seen of it before. The zero Subject has seen nothing.
type NodeState struct {
	// Node is as last seen.
	Node *corev1.Node
	// Busy subjects are counted and get no step: a write is under way, or must wait after one that failed.
	Busy bool
	// Charge says who judges the Node.
	Ownership Ownership

	pulse  pulse
	traits traits
	// declared is when the Node was first seen with the conditions of one that was declared; 0 when it is not.
	declared monotonic.Instant
	// banished is when it was seen to get its NoExecute taint; 0 when that was not seen.
	banished monotonic.Instant
}

// Charge says who judges a Node: the holder of the term of its shard. Sessions are kept there, so nobody else knows whether it
// lives; others count it in its zone by what its object says.
type Ownership struct {
	Shard int
	// Held tells that the term is held here.
	Held bool
	// Since is when it was gained. Whoever beat to another replica until then has a whole grace period from there, in which
	// to find this one.
	HeldSince monotonic.Instant
}

// See returns the Subject after an observation at the given time. An observation that repeats the last one changes nothing.
func (r Rules) Observe(now monotonic.Instant, s NodeState, o Observation) NodeState {
	met := s.Node == nil || s.Node.UID != o.Node.UID
	if met {
		s.pulse, s.declared, s.banished = r.begun(now, o), 0, 0
	} else {
		s.pulse = r.heard(now, s.pulse, o)
	}
	if s.Node != o.Node {
		tainted := s.traits.tainted
		s.traits = r.traitsOf(o.Node)
		if s.traits.tainted && !tainted && !met {
			s.banished = now
		}
	}
	switch {
	case !s.traits.declared:
		s.declared = 0
	case s.declared == 0:
		s.declared = max(now, 1) // 0 stands for never
	}
	s.Node = o.Node
	return s
}

// LeaseVersion is the resourceVersion of the Lease as last seen, empty when there was none.
func (s *NodeState) LeaseVersion() string { return s.pulse.lease.version }

// Session is how the Node's session stood when last seen.
func (s *NodeState) Session() Session { return s.pulse.session }

// Ready is the status of the Node's Ready condition; empty without one.
func (s *NodeState) Ready() corev1.ConditionStatus { return s.traits.ready }

// ReadySince is when the Ready condition last changed its status, as whoever changed it says; without one, when the Node was made.
func (s *NodeState) ReadySince() time.Time { return s.traits.since }

// compareSubjects orders by how long Nodes have been in their state of readiness, then by name.
func compareSubjects(a, b *NodeState) int {
	if c := a.traits.since.Compare(b.traits.since); c != 0 {
		return c
	}
	return cmp.Compare(a.Node.Name, b.Node.Name)
}

// Zone is the name of the Node's zone.
func (s *NodeState) Zone() string { return s.traits.zone }

// traits are what a pass asks of every Node, worked out once for each version of it.
type traits struct {
	zone     string
	ready    corev1.ConditionStatus // empty without a Ready condition
	since    time.Time              // of ready
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
	t := traits{zone: ZoneOf(node.Labels), since: node.CreationTimestamp.Time}
	if ready := conditionOf(node, corev1.NodeReady); ready != nil {
		t.ready, t.since = ready.Status, ready.LastTransitionTime.Time
	}
	t.excluded = r.Excludes(node)
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

// Excludes tells whether a label keeps a Node out of the count of its zone.
func (r Rules) Excludes(node *corev1.Node) bool {
	return slices.ContainsFunc(r.ExcludeLabels, func(label string) bool {
		_, has := node.Labels[label]
		return has
	})
}
