package explain

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// Health is what is believed of a Node, with what its kubelet says of itself.
type Health uint8

const (
	// Starting nodes have no Ready condition and time left to get one.
	Starting Health = iota
	// Ready nodes give signs of life and say that they are ready.
	Ready
	// NotReady nodes give signs of life and do not say that they are ready.
	NotReady
	// Suspect nodes have not been heard in time.
	Suspect
	// Silent nodes have used up their time and are not declared.
	Silent
	// Unknown nodes were declared.
	Unknown
)

// HealthOf is the health of a Node that was judged.
func HealthOf(node *corev1.Node, believed nodehealth.Health) Health {
	switch believed {
	case nodehealth.Starting:
		return Starting
	case nodehealth.Suspect:
		return Suspect
	case nodehealth.Silent:
		return Silent
	case nodehealth.Dead:
		return Unknown
	}
	switch ready := condition(node, corev1.NodeReady); {
	case ready == nil:
		return Starting // it beats already
	case ready.Status == corev1.ConditionTrue:
		return Ready
	}
	return NotReady
}

// Standing is how a Node stands, in times by the wall clock. Times that are not known are zero.
type NodeStatus struct {
	Node   *corev1.Node
	Health Health
	// Heard is the last sign of life by By, or with nodehealth.Reprieve that before which silence does not count.
	Heard time.Time
	By    nodehealth.SignSource
	// Deadline is when the node is silent; zero while a session keeps it alive.
	Deadline time.Time
	// HeldBy says why it is not declared although it is silent.
	HeldBy string
}

// Facts are all that is known of a Node.
type Facts struct {
	NodeStatus
	// Now is when it was looked at.
	Now time.Time
	// Shard is that of the Node, and Epoch that of the term under which it is judged.
	Shard int
	Epoch int64
	// Sessions tells whether sessions are kept here at all; Session is nil when the Node has none.
	Sessions bool
	Session  *Session
	// Lease is nil when there is none; Namespace is where it would be.
	Lease     *Lease
	Namespace string
	// Zone is that of the Node, and Excluded tells that the Node does not count in it.
	Zone     nodehealth.Zone
	Excluded bool
	// Doubt says why no taint that evicts is added in the zone; empty when they are.
	TaintsHeldBy string
	// Pods are those on the Node.
	Pods []*corev1.Pod
	// Eviction is nil where pods are not evicted by this replica.
	Eviction *Eviction
}

// Session is the session of a Node.
type Session struct {
	State nodehealth.Session
	Boot  string
	// Epoch is that of the term under which it is kept.
	Epoch                 int64
	Start, Beat, Deadline time.Time
	// WriteError is why the Lease could not be written; empty when it could, or need not be.
	WriteError string
}

// Lease is what the Lease of a Node says.
type Lease struct {
	Version   string
	RenewTime time.Time
	Duration  time.Duration
	Holder    string
}

// Eviction is which pods have to leave the Node.
type Eviction struct {
	// Pending are ordered by when they are due.
	Pending []Pending
}

// Pending is a pod that has to leave.
type Pending struct {
	Name, Taint, Held, LastError string
	Due                          time.Time
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}
