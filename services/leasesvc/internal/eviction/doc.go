// Package eviction decides which pods have to leave their Node for its NoExecute taints, and when.
//
// Promise: it comes to the conclusions of upstream's taint-eviction controller (k8s.io/kubernetes, pkg/controller/tainteviction,
// v1.37.1). A taint that a pod does not tolerate drives it out at once; one that it tolerates for some seconds, when these are
// over; one that it tolerates without an end, never; the earliest taint counts, and for each taint the first toleration that fits.
// Mirror pods, pods of DaemonSets and pods that have finished are treated as any other: their tolerations decide. It differs where
// that controller forgets, or acts on what it should doubt:
//   - when a pod has to go follows from what pod and Node say now and from when the taint was first there. Upstream keeps the moment
//     that it worked out first, until it is restarted: a further taint that is tolerated for less long, or a toleration that is
//     changed, counts here and not there;
//   - a new term counts on: a taint that was there before is as old as the Node itself says, see below;
//   - a Node that is gone evicts nobody, and a pod that is being deleted is left alone;
//   - while node health is in doubt, its own taints, not-ready and unreachable, evict nobody; others do.
//
// When a taint began to count, never early:
//   - one that was seen to come counts from then, by the process's own time, whatever it says of itself;
//   - one that was there when the Node was first seen counts from its timeAdded; without one, from the last write of the Node's list
//     of taints, which is no earlier. Another clock wrote both, so ClockTolerance is added, and what lies in the future is now. Only
//     clocks that disagree by more than that can make an eviction early, and only then;
//   - one whose timeAdded has become later was taken away and came back unseen, so it counts from when that was seen;
//   - when one of not-ready and unreachable takes the place of the other, a pod that was waiting is due no later than it was;
//   - no taint counts for a pod before the pod was on the Node, which is judged in the same way: by when it was seen to come, or by
//     its PodScheduled condition.
//
// Invariants: no pod that tolerates all taints is evicted; the one that was due first leaves first; in no window do more leave than
// Rules allow; equal calls give equal plans; inputs are never mutated. The package does no I/O and reads no clock.
package eviction
