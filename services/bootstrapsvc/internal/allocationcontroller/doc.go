// Package allocationcontroller runs the allocation audit while a term lasts. It compares the
// ClusterIPs and node ports in use with those that are allocated, reports findings, and repairs the
// safe ones.
//
// [KubeCluster] reads, watches and writes Services, IPAddress objects and ServiceCIDRs; package
// rangestore does so for the bitmaps in etcd. One goroutine owns all state of a term: watch events
// and requests reach it through channels. It makes a pass after a change, when a grace period may
// be over, when a repair may be retried, and every twenty seconds. A pass compares, repairs, stores
// findings and publishes a [Snapshot], which any goroutine may read. A new term keeps only what
// package repairstore has.
//
// # Invariants
//
//   - Before every watch has listed its objects, nothing is compared and nothing is written.
//   - A finding that something in use is not allocated, or has the wrong parent, opens only after
//     live reads confirmed it. Watches may be out of step, and a deleted Service then looks like
//     one that lost its address.
//   - A plan is stored before its first step is applied, and the result of a step before the next
//     step. A new leader therefore checks a step that was applied but not recorded, and finds it
//     unneeded.
//   - Right before each step, its preconditions are read live, first the address or range and then
//     the Services; for steps that set bits, the other way round. The write requires the version
//     that was read. A step whose preconditions no longer hold is not applied, and neither are the
//     later steps of the same finding.
//   - A bit is cleared only at a revision that the watch has reached, and only after this term
//     watched it unused for the whole grace period. A bit that was cleared and set again meanwhile
//     looks the same and belongs to another Service.
//   - Each finding has its own repair backoff. A failing repair delays neither the repairs of other
//     findings nor new repairs; findings about what is in use come first.
//   - A write with an unknown result is checked again. An unavailable dependency never makes a step
//     fail; the step stays pending.
//   - A person applies exactly the plan that was shown: the controller plans again and rejects the
//     stored plan if its steps would differ. A plan is applied once, because its repair has its ID.
//   - A cancelled repair is never continued. A running pass starts no step of a repair that a
//     caller wants to cancel.
//   - An ignored finding is neither repaired automatically, nor in a plan of all findings, nor a
//     problem. The mark is stored before it counts, and ends with its finding.
//   - After its term, the controller writes nothing; see [Cluster], [Ranges] and [RepairStore].
//
// [Telemetry] publishes events and metrics under the names of kube-apiserver's repair controllers,
// and Trivet's metrics beside them. It sends one event for a finding when the finding opens. It
// sends none for a full port range, because upstream's event has no object to refer to.
package allocationcontroller
