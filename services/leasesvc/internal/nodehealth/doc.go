// Package nodehealth decides how healthy Nodes are and what follows: conditions, taints, labels and
// the readiness of Pods. It does no I/O and reads no clock.
//
// Observe keeps a NodeState for each Node. ClusterState is what one pass hands to the next one.
// Rules.Plan combines both into steps and a self-check.
//
// # Compatibility
//
// The package reaches the conclusions of the node-lifecycle controller of Kubernetes
// (k8s.io/kubernetes, v1.37.1). It uses the same signs of life, the Lease and the heartbeat of the
// Ready condition, and the sessions that beat over gRPC. It differs in these points:
//   - A sign of life is a newer version of an object in which the heartbeat has changed. The node's
//     clock may be wrong.
//   - A Node is marked Unknown once, after its Lease was read again. A Node that is marked costs no
//     further request.
//   - Zones count all Nodes, also those whose last write failed.
//   - No Node is marked Unknown while the process is uncertain: it was late, kube-apiserver does
//     not answer, or the Lease cache is behind. The same holds while many nodes of one zone or
//     shard fell silent together, until a self-check has passed.
//   - After an outage, or after all zones were down, every node has one full grace period again.
//     An answer that takes long makes the grace periods as much longer.
//   - No uncertainty stops the NoExecute taints and the marks of Pods of Nodes that are marked
//     Unknown already.
//   - Which Pods to mark NotReady is read from the objects, so a restart or a write conflict
//     forgets none. A Pod on a Node that its kubelet reports not ready is marked once: see
//     Plan.Dead and Plan.NotReady.
//
// # Division among replicas
//
// Replicas divide the Nodes by shard. A replica judges the Nodes whose shard it holds. The replica
// with Authority.HoldsZones sets the NoExecute taints of all Nodes. Zone states are the same on all
// replicas. A replica that does not hold a Node's shard has no session of the Node and must not
// judge it.
//
// # Grace periods
//
//   - A session that is alive or suspect keeps its Node alive, if its agent observes the kubelet or
//     the kubelet never renewed its Lease itself. Otherwise the kubelet's own signs of life decide.
//   - A session that expired here ends the grace period at once. If the kubelet renewed the Lease
//     itself, or posted a status while beats were missing, the Node has a full grace period from
//     there. If most sessions or connections of this replica are silent, the replica may be cut
//     off: they count one grace period later, or MaxReceiverDoubt later as long as renewed Leases
//     contradict them.
//   - Without a session the grace period counts from the last sign of life, or from when the shard
//     was gained.
//
// # Invariants
//
//   - No Node is marked Unknown before a grace period without a sign of life, seen by one process,
//     or the end of its session.
//   - Planning the result of a plan yields no step.
//   - In any time window a zone gets at most its rate of NoExecute taints, plus one.
//   - Taints with other keys, conditions of other types and other labels stay as they are.
//   - Equal calls give equal plans, and inputs are never mutated.
//
// Silence is measured in Instants, which no clock change can step. Wall-clock time is only written
// into objects. Times that a kubelet wrote are only compared with times that the same kubelet
// wrote.
package nodehealth
