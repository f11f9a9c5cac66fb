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
//     not answer or takes no writes of Leases, or the Lease cache is behind. The same holds while
//     many nodes of one zone or shard fell silent together, until a self-check has passed.
//   - After an outage, or after all zones were down, every node has one full grace period again.
//     An answer that takes long makes the grace periods as much longer.
//   - No uncertainty stops the NoExecute taints and the marks of Pods of Nodes that are marked
//     Unknown already.
//   - Which Pods of a Node that is marked Unknown to mark NotReady is read from the objects, so a
//     restart or a write conflict forgets none. The Node may have been Ready=False before.
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
//     there. If most sessions or connections of this replica are silent, at least four sessions or
//     all of two or three, the replica may be cut off: they count one grace period later, or
//     MaxReceiverDoubt later as long as renewed Leases contradict them. If the doubt ends because
//     holders are heard again, the others have a grace period from then on.
//   - A Node without a session whose Lease leasesvc renewed last had a session at a former leader.
//     If this replica gained its shard and hears few such Nodes, it doubts as above: four are
//     enough, or two for a replica that heard few before. Another replica should have the shards of
//     one that hears few Nodes: see ClusterState.HearsFew.
//   - While this replica refuses connections or holders for lack of capacity, the agent of a Node
//     that falls silent may be refused. The Node is marked when all that were refused have tried
//     again, or MaxReceiverDoubt after the verdict without refusals.
//   - Without a session the grace period counts from the last sign of life, or from when the shard
//     was gained, less the silence that earlier holders of the shard observed. See Silences.
//
// # Changes of the holder
//
// A holder passes on for how long a Node has been silent, once that is longer than the time between
// two signs of a living node: a quarter of the grace period by default. The next one adds its own
// observation, and observes the Node for Rules.LeastSilence at least. A silence is a duration and
// does not age, so a time without a holder counts as no silence.
//
// A change of the holder delays the mark of a dead Node by the time without a holder, and by
// LeastSilence or what was not stored. With the default times that is 15 s, or up to 22.5 s: 12.5 s
// before the silence is stored, 5 s until the write, and 5 s in which the holder was cut off from
// etcd. Once a silence is stored, each further holder adds its term less 10 s. Holders that change
// more often than every 15 s mark no Node, because living agents have not reached the last one.
//
// A session that expired in the term of a holder counts after LeastSilence too: a beat that another
// replica forwarded late may have opened it, before the agent has reached the holder. After a
// refusal for lack of capacity it counts after a grace period.
//
// Nothing is inherited that a holder may not have observed. A holder that is uncertain, that doubts
// its receiver, or most of whose Nodes are silent passes on what it inherited and adds nothing. It
// does not count what it inherited while most of its Nodes are silent, nor in a term in which it
// refused a holder or a connection for lack of capacity. A refusal more than two minutes ago does
// not count, nor a series of refusals that had lasted for MaxReceiverDoubt when the term began.
// After an outage of kube-apiserver that it saw, silence from before does not count.
//
// # Invariants
//
//   - No Node is marked Unknown before a grace period without a sign of life, seen by the holders
//     of its shard, or the end of its session. A sign that a holder saw counts unless it lost the
//     term before the next write of its checkpoint. In that case, LeastSilence lets a living Node
//     be heard again.
//   - Planning the result of a plan yields no step.
//   - In any time window a zone gets at most its rate of NoExecute taints, plus one.
//   - Taints with other keys, conditions of other types and other labels stay as they are.
//   - Equal calls give equal plans, and inputs are never mutated.
//
// Silence is measured in Instants, which no clock change can step. Wall-clock time is only written
// into objects. Times that a kubelet wrote are only compared with times that the same kubelet
// wrote.
package nodehealth
