// Package merge makes one status of a cluster from what its replicas say of themselves, and one list from their pages.
//
// It decides and does nothing else: no I/O, no clock, no context. The same answers give the same status in whatever
// order they are handed over, and the answers are never changed; the status refers to them instead of copying, so
// neither may be modified afterwards.
//
// Three rules settle every disagreement between replicas:
//
//   - An answer counts only if it comes from the replica that was asked. An address outlives a process, so the
//     successor of a dead replica can pick up a call that was meant for its predecessor.
//   - Of two claims to a shard the one with the higher epoch is the later one, and it wins. Of two reports about the
//     same claim the holder's own wins, since only the holder knows how long it may still act.
//   - Silence is never good news: a service without a registered replica, a shard without a leader, a replica that
//     did not answer or is not ready each make a problem, and a problem makes the service and the cluster unhealthy.
package merge
