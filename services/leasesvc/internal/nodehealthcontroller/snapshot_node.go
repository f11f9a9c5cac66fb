package nodehealthcontroller

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// Node is what is shown of one Node. Readers share it and do not write to it.
type Node struct {
	// Object is the Node as last seen, stripped.
	Object *corev1.Node
	Zone   string
	Ready  corev1.ConditionStatus
	Shard  int
	Result
	// ChangedAt is when its health or its readiness last changed, or when it was first seen in charge here.
	ChangedAt monotonic.Instant
	// Revision is that of its last change.
	Revision uint64
}

// View is how a Node stands in one pass.
type Result struct {
	// Held tells that the Node is judged here. Otherwise the rest is empty.
	Held bool
	// Epoch is that of the term of its shard.
	Epoch int64
	// Judgement has no Heard while a session keeps the Node alive: its owner knows when it last beat.
	Assessment nodehealth.Assessment
	Session    nodehealth.Session
	// HeldBy says why it is not declared although it is silent; empty otherwise.
	HeldBy string
}

// silent is the View without what a sign of life changes.
func (v Result) silent() Result {
	v.Assessment = nodehealth.Assessment{Health: v.Assessment.Health}
	return v
}

// next is the Node after another pass, or n itself if that changed nothing. A change that is shown has the given revision.
func (n *Node) next(s *nodehealth.NodeState, v Result, now monotonic.Instant, revision uint64) *Node {
	if n != nil && n.Object == s.Node && n.Shard == s.Ownership.Shard && n.Result == v {
		return n
	}
	next := &Node{Object: s.Node, Zone: s.Zone(), Ready: s.Ready(), Shard: s.Ownership.Shard, Result: v, ChangedAt: now, Revision: revision}
	if n == nil {
		return next
	}
	if n.Held && v.Held && n.Assessment.Health == v.Assessment.Health && n.Ready == next.Ready && n.Object.UID == s.Node.UID {
		next.ChangedAt = n.ChangedAt
	}
	if !n.Held && !v.Held || n.Object == s.Node && n.silent() == v.silent() {
		next.Revision = n.Revision
	}
	return next
}

// gone is the Node when it does not exist any more.
func (n *Node) gone(revision uint64) *Node {
	return &Node{Object: n.Object, Zone: n.Zone, Ready: n.Ready, Shard: n.Shard, Result: Result{Epoch: n.Epoch}, ChangedAt: n.ChangedAt, Revision: revision}
}
