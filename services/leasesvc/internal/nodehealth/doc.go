// Package nodehealth decides how healthy Nodes are and what follows: conditions, taints, labels and
// the readiness of Pods. It does no I/O and reads no clock.
//
// Observe keeps a NodeState for each Node. ClusterState is what one pass hands to the next one.
// Rules.Plan combines both into steps and a self-check.
//
// # When a Node is marked Unknown
//
// A kubelet renews its Lease every ten seconds, ±4 %. Each renewal is acknowledged by the leader of
// its shard, or written to kube-apiserver within 6 s. This package believes either. So a Node whose
// kubelet reaches a kube-apiserver is never marked, whatever happens to the replicas of leasesvc.
//
// A sign of life is worth a time:
//   - A beat of the session is worth 20 s (Rules.SessionGrace), or half of the duration of the
//     Lease if that is more. A beat is dated to the agent's last observation of the kubelet, so an
//     agent whose kubelet is silent keeps no session alive: its session expires, and it says that
//     the kubelet is silent.
//   - A sign of the kubelet's own is worth 50 s (Rules.GracePeriod). It is a renewal of the Lease
//     that leasesvc did not write, or a heartbeat in the status. Once there is a session, it counts
//     only if it came more than 6 s after the last beat: an earlier sign proves no more than the
//     beat.
//   - While a living agent says that the kubelet is silent, the kubelet's own sign is worth 20 s.
//
// The sign that lasts longest decides. A Node whose session this replica never had has 50 s from
// the latest of its last sign, of when it was first seen, and of when this replica gained its
// shard. Until it has a Ready condition it has 60 s instead.
//
// A mark waits for the last of four ends, the rows of the table of delays (delay.go):
//   - of what the last sign is worth;
//   - of the first 20 s of a term;
//   - of an outage: kube-apiserver does not answer, refuses, or rejects writes of Leases, from the
//     first self-check that fails, or that runs for longer than a second, to the first that passes;
//     then for as long as it lasted, 20 s at least and 50 s at most. Of outages of less than eight
//     seconds only the first in 50 s counts. An answer that takes longer than a second delays a
//     mark by as much;
//   - of one grace period after a time in which no zone had a ready node.
//
// Nothing else delays a mark; how many nodes fall silent together changes nothing. Before a mark is
// written the Lease is read past the cache, and a renewal that it shows counts as one that came
// now. A self-check reads and writes Leases every two seconds. So kube-apiserver took a Lease in
// the three seconds before a mark, and a living kubelet has written its own 3.6 s before it.
//
// TestEnumerate searches for a history that breaks this, and finds one when the 6 s, the live read,
// what a beat is worth, the first 20 s of a term, or the third row is taken out. The fourth row is
// that of upstream.
//
// A kubelet may live and reach no kube-apiserver. A Node with a living session is marked as well if
// for 50 s its kubelet has reached none while another kubelet was served; see Assessment.CutOff.
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
//   - After an outage of kube-apiserver every node has as long as the outage lasted, and no whole
//     grace period after a short one. An answer that takes long makes the grace periods as much
//     longer.
//   - No row of the table stops the NoExecute taints and the marks of Pods of Nodes that are
//     marked Unknown already.
//   - Which Pods of a Node that is marked Unknown to mark NotReady is read from the objects, so a
//     restart or a write conflict forgets none. The Node may have been Ready=False before.
//
// # Division among replicas
//
// Replicas divide the Nodes by shard. A replica judges the Nodes whose shard it leads. The replica
// with Authority.HoldsZones sets the NoExecute taints of all Nodes. Zone states are the same on all
// replicas. A replica that does not lead a Node's shard has no session of the Node and must not
// judge it.
//
// A new leader needs no memory of silence to be safe: within 17 s of the loss of the old leader a
// living node has beaten here or written its Lease (10.4 s to its next renewal, and 6 s). It marks
// no Node in the first 20 s of its term (Rules.LeastSilence). Checkpoints of sessions only make
// marks sooner. A Node without a session has a new grace period.
//
// # Invariants
//
//   - No Node is marked Unknown before every row of the table is over, except for
//     Assessment.CutOff.
//   - Planning the result of a plan yields no step.
//   - In any time window a zone gets at most its rate of NoExecute taints, plus one.
//   - Taints with other keys, conditions of other types and other labels stay as they are.
//   - Equal calls give equal plans, and inputs are never mutated.
//
// Silence is measured in Instants, which no clock change can step. Wall-clock time is only written
// into objects. Times that a kubelet wrote are only compared with times that the same kubelet
// wrote.
package nodehealth
