package nodehealth

import (
	"cmp"
	"slices"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Lease is what the Lease object of a Node says. The zero Lease means that the object does not
// exist.
type Lease struct {
	// Version is the resourceVersion.
	Version string
	// RenewTime is by the clock of the writer, so it is only compared with itself.
	RenewTime time.Time
	// Duration is leaseDurationSeconds. It never shortens a grace period below Rules.SessionGrace,
	// nor does it extend one beyond Rules.GracePeriod: a kubelet renews after a quarter of it.
	Duration time.Duration
	// Holder is holderIdentity. It is shown to readers and decides nothing.
	Holder string
	// RenewedByUs says that this replica or a peer renewed it last, for a session. This is no sign
	// of life of its own: the replica with the session judges the Node.
	RenewedByUs bool
	// ByOther is zero if no other writer was seen.
	ByOther LeaseRenewedByOther
}

// LeaseRenewedByOther is the last version of a Lease that another writer than leasesvc renewed: the
// kubelet. The present version may be newer.
type LeaseRenewedByOther struct {
	Version   string
	RenewTime time.Time
	Duration  time.Duration
}

// Observation is what is known of a Node at one moment.
type Observation struct {
	// Node is required. It is shared, so it must not be written to.
	Node  *corev1.Node
	Lease Lease
	// Session is session.Gone for a node that does not beat at this replica.
	Session session.State
	// SessionObserves says that the beats of the session carry when the kubelet was observed last.
	// Other beats prove the agent: they speak for the kubelet by contract, until its own signs
	// contradict them.
	SessionObserves bool
	// AgentLives says that beats of a session that expired still arrive: the agent says that its
	// kubelet is silent.
	AgentLives bool
	// CutOffFor is for how long the agent has seen all requests of its kubelet to kube-apiserver
	// fail; 0 if they are served, or if the agent does not see them. A later begin than observed
	// before means that a request was served in between.
	CutOffFor time.Duration
	// Agent registered the session; the zero Handle if that is not known. Readers see it.
	Agent unique.Handle[session.Agent]
	// WrittenVersion is the resourceVersion of the last write of the Lease by this replica. At this
	// version the Lease is RenewedByUs.
	WrittenVersion string
}

// NodeState is what is known of one Node. The zero NodeState has no observation.
type NodeState struct {
	// Node is as last observed.
	Node *corev1.Node
	// Busy Nodes count in their zone and get no step: a write is running, or backs off after a
	// failure.
	Busy      bool
	Ownership Ownership

	signs  signs
	traits traits
	// unknownSince is when the Node was first observed as marked Unknown; 0 if it is not.
	unknownSince monotonic.Instant
	// taintedAt is when the Node was observed to get its NoExecute taint; 0 if that was not
	// observed.
	taintedAt monotonic.Instant
	// wasReady says that the Node was observed to be ready.
	wasReady bool
}

// Ownership says which replica judges a Node: the leader of its shard, which has the sessions.
// Other replicas only count the Node in its zone.
type Ownership struct {
	Shard int
	// Held says that this replica leads the shard.
	Held bool
	// HeldSince is when this replica gained the shard. From there a node without a session has a
	// full grace period to find it.
	HeldSince monotonic.Instant
}

// Observe returns the state after an observation. Repeating the last observation changes nothing.
func (r Rules) Observe(now monotonic.Instant, s NodeState, o Observation) NodeState {
	first := s.Node == nil || s.Node.UID != o.Node.UID
	if first {
		s.signs, s.unknownSince, s.taintedAt, s.wasReady = r.firstSigns(now, o), 0, 0, false
	} else {
		s.signs = r.nextSigns(now, s.signs, o)
	}
	if s.Node != o.Node {
		wasTainted := s.traits.tainted
		s.traits = r.traitsOf(o.Node)
		if s.traits.tainted && !wasTainted && !first {
			s.taintedAt = now
		}
	}
	s.wasReady = s.wasReady || s.traits.ready == corev1.ConditionTrue
	switch {
	case !s.traits.unknown:
		s.unknownSince = 0
	case s.unknownSince == 0:
		s.unknownSince = max(now, 1) // 0 means never
	}
	s.Node = o.Node
	return s
}

// LeaseVersion returns the resourceVersion of the Lease as last observed, or "".
func (s *NodeState) LeaseVersion() string { return s.signs.lease.version }

// Session returns the state of the session as last observed.
func (s *NodeState) Session() session.State { return s.signs.session }

// Agent returns what registered the session as last observed; the zero Handle is not known.
func (s *NodeState) Agent() unique.Handle[session.Agent] { return s.signs.agent }

// LastRenewal returns when the kubelet renewed the Lease last; 0 if that was not observed.
func (s *NodeState) LastRenewal() monotonic.Instant { return s.signs.lastRenewal() }

// LastStatus returns when the last heartbeat in the status was observed; 0 if none was.
func (s *NodeState) LastStatus() monotonic.Instant { return s.signs.posted }

// Zone returns the name of the Node's zone.
func (s *NodeState) Zone() string { return s.traits.zone }

// Ready returns the status of the Ready condition, or "".
func (s *NodeState) Ready() corev1.ConditionStatus { return s.traits.ready }

// ReadySince returns the last transition of the Ready condition, or the creation of the Node.
func (s *NodeState) ReadySince() time.Time { return s.traits.readySince }

// compareNodes orders by ReadySince, then by name.
func compareNodes(a, b *NodeState) int {
	if c := a.traits.readySince.Compare(b.traits.readySince); c != 0 {
		return c
	}
	return cmp.Compare(a.Node.Name, b.Node.Name)
}

// traits are what each pass needs of a Node. They are computed once for each version of it.
type traits struct {
	zone       string
	ready      corev1.ConditionStatus // "" without a Ready condition
	readySince time.Time
	excluded   bool
	// tainted says that the Node has a NoExecute taint of node health, wanted or not.
	tainted   bool
	noExecute noExecuteNeed
	// drifted says that NoSchedule taints or labels need a change.
	drifted bool
	// unknown says that the Node is marked Unknown.
	unknown bool
}

// noExecuteNeed is what the NoExecute taints of a Node need.
type noExecuteNeed uint8

const (
	inSync noExecuteNeed = iota
	changeNow
	addAtRate
)

func (r Rules) traitsOf(node *corev1.Node) traits {
	t := traits{zone: ZoneOf(node.Labels), readySince: node.CreationTimestamp.Time}
	if ready := ConditionOf(node, corev1.NodeReady); ready != nil {
		t.ready, t.readySince = ready.Status, ready.LastTransitionTime.Time
	}
	t.excluded = r.Excludes(node)
	t.tainted = slices.ContainsFunc(node.Spec.Taints, isNoExecuteOfHealth)
	if change, rateLimited := noExecuteTaints(node, t.ready); rateLimited {
		t.noExecute = addAtRate
	} else if !change.empty() {
		t.noExecute = changeNow
	}
	noSchedule := noScheduleTaints(node)
	t.drifted = !noSchedule.empty() || len(missingLabels(node.Labels)) > 0
	t.unknown = isMarkedUnknown(node)
	return t
}

// Excludes returns whether a Node has an exclude label.
func (r Rules) Excludes(node *corev1.Node) bool {
	return slices.ContainsFunc(r.ExcludeLabels, func(label string) bool {
		_, has := node.Labels[label]
		return has
	})
}
