// Package eviction decides which Pods must leave their Node for its NoExecute taints, and when. It
// does no I/O and reads no clock.
//
// NodeEvictions is what is known of one Node; Observe keeps it. Rules.Plan chooses the Pods of all
// Nodes that leave now.
//
// # Compatibility
//
// The package reaches the conclusions of the taint-eviction controller of Kubernetes
// (k8s.io/kubernetes, pkg/controller/tainteviction, v1.37.1):
//   - A taint that a Pod does not tolerate evicts it at once. A taint that it tolerates for some
//     seconds evicts it after that time.
//   - For several taints the earliest time counts. For each taint the first toleration that matches
//     counts.
//   - Mirror Pods, Pods of DaemonSets and finished Pods are not special: their tolerations decide.
//
// It differs in these points:
//   - The time of an eviction follows from what Pod and Node say now, and from when the taint was
//     first there. Upstream keeps its first result until it restarts, even if a taint is added or a
//     toleration changes.
//   - A new term continues to count: the age of a taint that was there before is read from the
//     Node.
//   - A Node that does not exist evicts no Pod. A Pod that is being deleted is left alone.
//   - While node health is unreliable, its taints not-ready and unreachable evict no Pod. Other
//     taints do.
//
// # When a taint begins to count
//
// Never early:
//   - A taint that was observed to appear counts from then, by the time of this process.
//   - A taint on a Node that is observed for the first time counts from its timeAdded. Without
//     timeAdded it counts from the last write of the Node's taints. Another clock wrote both times,
//     so ClockTolerance is added, and a time in the future means now.
//   - A taint whose timeAdded became later was removed and added again, so it counts from when that
//     was observed.
//   - If not-ready replaces unreachable, or the reverse, a pending Pod leaves no later than before.
//   - No taint counts for a Pod before the Pod was on the Node. That is when it was observed to
//     come, or its PodScheduled condition.
//
// Only clocks that differ by more than ClockTolerance can make an eviction early.
//
// # Invariants
//
//   - A Pod that tolerates all taints is not evicted. The Pod that was due first leaves first.
//   - In no time window do more Pods leave than Rules allow.
//   - Equal calls give equal plans, and inputs are never mutated.
package eviction
