package explain

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Health is the assessed health of a Node together with its Ready condition.
type Health uint8

const (
	// Starting nodes have no Ready condition, and their startup grace period has not ended.
	Starting Health = iota
	// Ready nodes give signs of life and are ready.
	Ready
	// NotReady nodes give signs of life and are not ready.
	NotReady
	// Suspect nodes miss signs of life.
	Suspect
	// Silent nodes have used up their grace period and are not marked Unknown.
	Silent
	// Unknown nodes are silent and marked Unknown.
	Unknown
)

// HealthOf returns the Health of a Node that was assessed.
func HealthOf(node *corev1.Node, assessed nodehealth.Health) Health {
	switch assessed {
	case nodehealth.Starting:
		return Starting
	case nodehealth.Suspect:
		return Suspect
	case nodehealth.Silent:
		return Silent
	case nodehealth.Dead:
		return Unknown
	}
	switch ready := nodehealth.ConditionOf(node, corev1.NodeReady); {
	case ready == nil:
		return Starting // a node that beats stays Starting until its kubelet reports
	case ready.Status == corev1.ConditionTrue:
		return Ready
	}
	return NotReady
}

// NodeStatus is the status of a Node, with wall-clock times. Times that are not known are zero.
type NodeStatus struct {
	Node   *corev1.Node
	Health Health
	// Heard is the last sign of life by By, or with nodehealth.GraceStart the start of the grace
	// period.
	Heard time.Time
	By    nodehealth.SignSource
	// Deadline is when the node becomes silent; zero while a session keeps it alive.
	Deadline time.Time
	// Delay is the row of the table of delays that decides when the node is marked Unknown: for a
	// silent node why it is not marked. DelaySince is when it began; zero if that is not known.
	Delay      nodehealth.Delay
	DelaySince time.Time
	// CutOff says that the agent of the node lives, and that its kubelet reaches no kube-apiserver.
	CutOff bool
	// Session is the state of its session; session.Gone if it has none.
	Session session.State
	// DryRun says that node-health writes nothing: another controller marks and taints Nodes.
	DryRun bool
}

// Facts are what a replica knows of a Node.
type Facts struct {
	NodeStatus
	// Now is the time of the answer.
	Now time.Time
	// Epoch is that of the term of the Node's shard.
	Epoch int64
	// Sessions says whether this replica has a session table. Lease is nil if the Node has none.
	Sessions bool
	Lease    *Lease
	// LeaseObject is zero if there is none. Namespace is where it would be.
	LeaseObject nodehealth.Lease
	Namespace   string
	// Zone is that of the Node. Excluded says that the Node does not count in it.
	Zone     nodehealth.Zone
	Excluded bool
	// TaintHold is why no NoExecute taint is added in the zone.
	TaintHold nodehealth.Delay
	// Pods are those on the Node.
	Pods []*corev1.Pod
	// Evicts says whether this replica evicts Pods. Pending are the Pods that must leave the Node,
	// ordered by Due.
	Evicts  bool
	Pending []Pending
}

// Lease is what leasesvc keeps for a Node that sends heartbeats.
type Lease struct {
	State session.State
	Boot  string
	// Epoch is that of the term of the lease.
	Epoch             int64
	Start, ExpireTime time.Time
	// Beat is when the kubelet was last observed to be alive, AgentHeard when the agent was last
	// heard.
	Beat, AgentHeard time.Time
	// WriteError is why the Lease object could not be written, or "".
	WriteError string
	// Agent is the name of the agent, with its version and mode; empty if it is not known. Observes
	// says that it observes the kubelet.
	Agent    string
	Observes bool
	// CutOff is since when the agent has seen all requests of its kubelet to kube-apiserver fail;
	// zero if they are served, or if the agent does not see them.
	CutOff time.Time
}

// Pending is a Pod that must leave.
type Pending struct {
	Name, Taint, LastError string
	Hold                   nodehealth.Delay
	Due                    time.Time
}
