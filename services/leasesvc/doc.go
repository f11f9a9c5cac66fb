// Package leasesvc keeps one session for each holder that sends heartbeats, and one Lease object in
// Kubernetes for each session.
//
// Promise: the heartbeat of a live holder costs one write to memory and never waits for Kubernetes.
// A holder that misses some beats is suspect; a holder that is silent for the grace period of its
// class expires. The Lease object of an expired holder is left unchanged or written once, depending
// on --write-policy, so that other readers come to the same conclusion. A replica that takes over a
// shard starts with its checkpoint of silent holders and learns about the remaining holders from
// their beats: a failover neither expires live holders nor revives expired ones.
//
// The way of a heartbeat:
//
//	api.stream ─▶ responder.respond ─▶ session.Heartbeats.Beat    a live holder: one word in memory
//	                   │
//	                   ▼ other beats and registrations, one batch
//	    sessioncontroller.Process ─▶ session.Table ─▶ grant or rejection ─▶ answer
//	                   │ new, expired and recovered holders
//	                   ▼
//	    writeback.Schedule ─▶ writebackcontroller ─▶ LeaseWriter.Write, under the term of the shard
//
// If the shard has moved, the session is unknown here. The answer names the replica that holds the
// shard, and api.Forwarder sends the beat there. The new replica restores the checkpoint of silent
// holders before it accepts beats (sessioncontroller.Checkpoints).
//
// Holders are divided into shards (--shards) by a hash of class and name, and package term assigns
// shards to replicas. One session controller and one set of writers serve all shards that a replica
// holds. Reads answer for the held shards.
//
// Invariants:
//   - A session exists only on the replica that holds the term of its shard. It ends with the term.
//   - The newest boot of a holder owns its session. Beats are ordered by sequence, never by clocks.
//   - Writes to Kubernetes carry the context of the shard's term. Each write is guarded by
//     resourceVersion, each delete also by UID. A term ends only after all writes under it have
//     returned.
//
// The service owns these fields of the Leases in the namespaces of its classes, where
// holderIdentity is one of its holders: ownerReferences to the Node, holderIdentity if it is empty,
// leaseDurationSeconds and renewTime. A Lease of a holder that is not a Node has the label
// trivet.dev/holder-class instead of an owner. The service deletes such a Lease after the holder
// has been gone for long and no other writer has renewed it. In etcd the service owns its terms and
// checkpoints/leasesvc/<shard>, the silent holders of a shard.
//
// Kubelets may write their own Leases at the same time.
//
// With the loop node-health the service replaces upstream's node-lifecycle controller. It then owns
// the conditions of silent Nodes, the taints node.kubernetes.io/… that follow from conditions, the
// beta labels of operating system and architecture, and Ready=False of pods on Nodes that are not
// ready. The leader of shard 0 adds and removes the NoExecute taints of all Nodes. With the loop
// taint-eviction, the leader of shard 0 also deletes pods.
//
// docs/architecture.md lists the packages below internal.
package leasesvc
