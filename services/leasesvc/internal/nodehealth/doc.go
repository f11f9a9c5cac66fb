// Package nodehealth decides how healthy Nodes are and what follows: conditions, taints, labels and the readiness of pods.
//
// Promise: it comes to the conclusions of upstream's node-lifecycle controller (k8s.io/kubernetes, v1.37.1) from the same
// signs of life, the Lease and the heartbeat of the Ready condition, and from sessions that beat over gRPC. Only where that
// controller is known to declare the living dead, or to forget, it differs:
//   - a sign of life is a change, in whatever direction the node's clock was stepped, that the cache has not moved past already;
//   - a node is declared silent once, after the Lease was read again; one that has long been declared costs no request;
//   - zones are counted over all Nodes, whatever else could not be decided;
//   - nothing is declared while the process is blind: it was late, the kube-apiserver cannot be reached, the cache of Leases is
//     behind, or many nodes of one zone or shard fell silent together. A self-check ends that, and after an outage, or after
//     everything had been down, every node has one full grace period again;
//   - which pods to mark is read from the objects, so a restart or a lost race forgets none; and while a kubelet is heard, nobody
//     but it speaks for its pods.
//
// Replicas that see the same Nodes divide them: each judges those whose Charge it has, and one of them has the Mandate for the
// zones, whose states all of them know alike. A session is kept where its Node is judged; elsewhere its Node may look dead for
// minutes, which is nobody's business there.
//
// How long a silence may last follows from who writes the Lease and what became of the session:
//   - a session that is alive or suspect keeps its Node alive;
//   - one that expired here ends all patience, but for a Lease that somebody else renews and a status that was posted while beats
//     were missing: these have a whole grace period;
//   - without a session it is the grace period, counted from the last sign of life and from when the Node came into our charge.
//
// Invariants:
//   - nobody is declared early: not before a whole grace period without a sign of life, seen by one process, or the end of a
//     session that was kept by it;
//   - planning the result of a plan yields nothing;
//   - in no window do more nodes of a zone get a NoExecute taint than its rate allows, plus one;
//   - taints with other keys, conditions of other types and all other labels are nobody's business here;
//   - equal calls give equal plans, and inputs are never mutated.
//
// Silence is measured in Instants, which no clock can step. Wall-clock time is only written into objects, never compared, but
// for what a kubelet wrote against what the same kubelet wrote.
//
// A Subject is what is known of one Node and is made by See when something about it changed; Memory is what outlives a pass;
// Rules.Plan puts them together. The package does no I/O.
package nodehealth
