// Package leasesvc keeps one session for every holder that beats and one Lease object in Kubernetes for every session.
//
// Promise: a heartbeat of a living holder costs one write of memory, asks nobody and never waits for Kubernetes. A holder that
// has missed some of its beats is suspect, and one that was silent for its class's grace period expired; its Lease object is then
// left as it was, so that other readers come to the same conclusion, or written once to say so (--write-policy). A replica that
// takes a shard over begins with those who are known to have been silent, and learns the others from the beats that follow: so a
// failover costs nobody its life and gives the long dead no other one.
//
// Nobody is queued. Holders that come all at once are taken in at a rate, and the others asked to come again; a beat of theirs
// counts nonetheless. A sender who goes on sending too much is told to slow down, and then sent away. Watchers get the newest
// state of each session, and miss none but those in between.
//
// Holders are divided into shards (--shards) by a hash of class and name, and shards among the replicas by package term. One
// table and one set of writers serve all shards that a replica holds. A holder that comes to the wrong replica is refused and
// told which is the right one, and its beat is handed on there; the others on its stream are not disturbed. Reads are answered
// for the shards held here.
//
// Invariants:
//   - the session of a holder exists only on the replica that holds the term of its shard, and ends with it;
//   - the newest boot of a holder has its session; beats are ordered by sequence, never by clocks;
//   - Kubernetes is written only under the context of the holder's shard's term, each write guarded by resourceVersion, each
//     delete by UID too; a term is given up only after the writes made under it have returned.
//
// It owns the Leases of its classes' namespaces as far as their holderIdentity is a holder of its own: ownerReferences to the
// Node, holderIdentity where there is none, leaseDurationSeconds and renewTime. Those of holders that are no Nodes it makes with
// the label trivet.dev/holder-class instead of an owner, and deletes when they are long gone and nobody else renewed them. In etcd it owns, beyond its
// terms, checkpoints/leasesvc/<shard>: who was silent in the shard, for its next holder.
//
// Kubelets that write their own Leases may go on doing so beside it.
//
// It judges Nodes only where its loop node-health is switched on, in place of upstream's node-lifecycle controller. Then the
// holders of their shards own the conditions of those that fell silent, the taints node.kubernetes.io/… that follow from
// conditions, the beta labels of system and architecture, and Ready=False of pods on Nodes that are not ready; those taints that
// evict are set and removed by the holder of shard 0, for all Nodes. It deletes no pod, unless its loop taint-eviction is on.
//
// The rooms below: package session (who is alive), admission (who may come in), writeback (what to write when), keeper (the one
// goroutine that owns sessions and writes), tenure (which shards are held), nodes and leaseobject (Kubernetes), renewal (the
// workers between), pace (how many of them at a time); checkpoint (what to remember of the silent), checkpointkey
// (etcd), forward (what is handed on to other replicas); nodehealth (what follows from silence), nodewatch (the one
// goroutine that owns that, and its workers), nodeobject (Kubernetes), census (what readers see of it), evidence (why).
package leasesvc
