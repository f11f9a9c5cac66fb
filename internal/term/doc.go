// Package term is the only leadership code of Trivet. With one shard it is leader election, with many it divides the work of
// a service among its replicas; there is no second mechanism.
//
// A replica runs one [Candidate]. It opens an etcd session (a lease that it renews), writes a member key, and follows the
// members and terms of its service. Rendezvous hashing over the members says who should hold each shard. A shard is claimed
// by a transaction that creates its key only if it is absent, and given back by one that deletes the key only if it is still
// the same. For every shard held, one body runs with a context that carries the [Term].
//
// Keys, all below [Prefix], all bound to the replica's lease:
//
//	members/<service>/<replica>  the [Member] as JSON, the number of shards it divides the work into, whether it is leaving or not ready
//	terms/<service>/<shard>      the id of the replica that holds the shard
//
// Promises:
//   - A shard's epoch is the revision that created its key. A later term has a higher epoch, and [Term.Guard] holds for
//     exactly one term, so an etcd transaction that includes it cannot take effect after the term is over.
//   - A term's context ends, and [Term.Check] refuses, before etcd can let the lease lapse: at the time the last acknowledged
//     renewal was sent, plus the TTL, less a margin of a fifth of the TTL and at least 500 ms. The check compares the
//     monotonic clock, so a process that was frozen finds its term over before it can write.
//   - A leader of etcd that has lost its quorum acknowledges renewals until it notices, within two election timeouts; terms end
//     by as much later. That is still before the next leader lets a lease lapse, for it is not elected before one election
//     timeout has passed, and adds another to each whole TTL.
//   - A key is deleted, and the lease revoked, only after the bodies that ran under it have returned. A body that ignores the
//     end of its context keeps its shard; this is logged, fails [Candidate.Check], and others wait for it.
//   - A shard whose holder vanished without handing it over is started only after a short pause, in which the former holder
//     learns of it: a lease can be revoked by an operator, and then no clock has warned anybody.
//   - Replicas that divide the work into different numbers of shards never work side by side, because one object would belong
//     to two shards. The number of the member that joined first counts; the others wait until it, and all who agree with it,
//     have left. A rolling update that changes the number is therefore safe, and done when the last old replica is gone.
//   - Whatever happens to the session (expiry, revocation, compaction, no leader, no quorum, a key deleted by hand) ends
//     terms and never the process. The candidate joins again with a new lease, after a backoff with jitter.
//   - A replica joins only after a renewal has succeeded, and a body that returns during its term is not started again before
//     a backoff has passed. Meanwhile others may take its shard over: a replica that lives but cannot work blocks nobody.
//   - A replica that cannot do the work ([Candidate.SetUnready]) is given no shard while others can. When it stays that way it
//     gives its shards to them, and to nobody while nobody can: then all stay where they are. One that knows that others can
//     ([Candidate.Concede]) gives them away at once.
//   - A replica that stops says so before it deletes the first key, so that others take over each shard as soon as its body
//     has returned, however long the other bodies take.
//   - At rest a replica makes one request every third of a TTL and one list every half a minute, however many shards there are.
//
// Malformed keys and values of others are reported once and then ignored; a key that exists is never overwritten, whoever
// wrote it.
//
// What it does not do: it cannot stop a Kubernetes write that is already on its way when a term ends. Such writes carry a
// resourceVersion (deletes also a UID), and plans are made so that a late one is harmless. An etcd that is restored from an
// older backup counts revisions anew, so epochs are comparable only between restores.
package term
