// Package leasesvc keeps one session for every holder that beats and one Lease object in Kubernetes for every session.
//
// Promise: a heartbeat costs a memory write and never waits for Kubernetes. A holder that has been silent for two of its beats
// is suspect, and for the Lease's duration expired; its Lease object is then left as it was, so that other readers come to the
// same conclusion. This service declares no Node dead. A replica that takes over begins without sessions and learns them from
// the beats that follow, so a failover costs nobody its life.
//
// Invariants:
//   - sessions exist only on the replica that holds the term, and end with it;
//   - the newest boot of a holder has its session; beats are ordered by sequence, never by clocks;
//   - Kubernetes is written only under the term's context, each write guarded by resourceVersion, each delete by UID too.
//
// It owns the Leases of its classes' namespaces as far as their holderIdentity is a holder of its own: ownerReferences to the
// Node, holderIdentity where there is none, leaseDurationSeconds and renewTime. It writes no key of etcd beyond its term.
//
// It does not judge Nodes: conditions, taints and eviction are not its business yet. Kubelets that write their own Leases
// may go on doing so beside it.
//
// The rooms below: package session (who is alive), writeback (what to write when), keeper (the one goroutine that owns both),
// nodes and leaseobject (Kubernetes), renewal (the workers between).
package leasesvc
