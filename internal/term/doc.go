// Package term is the leadership code of Trivet. With one shard it is leader election; with many
// shards it divides the work of a service among its replicas.
//
// A replica runs one [Candidate]. The candidate opens an etcd session (a lease that it renews),
// writes a member key, and watches the members and terms of its service. Rendezvous hashing over
// the members says which replica should hold each shard. A transaction claims a shard by creating
// its key only if it is absent. Another one releases the shard by deleting the key only if it is
// unchanged. For each shard held, one [Body] runs with a context that carries the [Term].
//
// Keys, all below [Prefix]. Those of members and terms are bound to the replica's lease:
//
//	members/<service>/<replica>  the [Member] as JSON, its number of shards, whether it is leaving or unready
//	terms/<service>/<shard>      the id of the replica that holds the shard
//	switches/<service>           the loops in dry run that write, see [Candidate.SwitchLoop]
//
// Promises:
//   - A shard's epoch is the revision that created its key. A later term has a higher epoch.
//     [Term.Guard] holds for exactly one term, so an etcd transaction that includes it has no
//     effect after the term.
//   - A term's context ends, and [Term.Check] fails, before etcd can expire the lease: one TTL
//     after the last acknowledged renewal was sent, less a margin of TTL/5 and at least 500 ms. The
//     check compares the monotonic clock. A frozen process therefore finds its term ended before it
//     writes.
//   - An etcd leader without a quorum acknowledges renewals until it notices, within two election
//     timeouts, and terms end later by as much. That is still before the next leader expires a
//     lease: its election takes at least one election timeout, and it adds another one to each TTL.
//   - A key is deleted, and the lease revoked, only after the bodies that ran under it have
//     returned. A body that ignores the end of its context keeps its shard, and no other replica
//     starts the shard. This is logged and fails [Candidate.Check]. After the drain timeout it
//     also fails [Candidate.CheckAlive], so that a restart of the process frees the shard.
//   - A shard whose leader vanished without releasing it starts only after a short pause. An
//     operator can revoke a lease, and the former leader learns of that only from etcd.
//   - Replicas with different numbers of shards never work at the same time, because one object
//     would belong to two shards. The number of the member that joined first counts. Replicas with
//     another number wait until all members with that number have left. A rolling update that
//     changes the number is therefore safe, and takes effect when the last old replica has stopped.
//   - Loss of the session (expiry, revocation, compaction, no leader, no quorum, a deleted key)
//     ends terms and never the process. The candidate joins again with a new lease, after a backoff
//     with jitter.
//   - A replica joins only after a successful renewal. A body that returns during its term starts
//     again only after a backoff. Meanwhile other replicas may claim its shard, so a replica that
//     is alive but cannot work blocks no shard.
//   - Readiness is an order of preference and never a bar. An unready replica
//     ([Candidate.SetUnready]) gets no shard while other replicas are ready. If it stays unready,
//     it releases its shards to ready replicas, or to replicas that can do the work now and have
//     not proven it for long. If no replica can do the work, no shard moves. A replica that yields
//     releases its shards at once ([Candidate.YieldLeadership]).
//   - A loop in dry run writes only while the switch of its service names it. A replica knows the
//     switch before it claims a shard. The switch names no loop that is not in dry run.
//   - A replica that stops announces this before it deletes the first key. Other replicas then
//     claim each shard as soon as its body has returned, however long the remaining bodies take.
//   - At rest a replica sends one request every third of a TTL and one list every 30 s, for any
//     number of shards.
//
// A malformed key or value of another writer is reported once and then ignored. A key that exists
// is never overwritten.
//
// The package cannot stop a Kubernetes write that is in flight when a term ends. Such a write
// carries a resourceVersion (a delete also a UID), and plans are made so that a late write does no
// harm. An etcd restored from an older backup restarts its revisions, so epochs are comparable only
// between restores.
package term
