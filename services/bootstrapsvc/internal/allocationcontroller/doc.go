// Package allocationcontroller runs the allocation audit while a term lasts. It compares the
// ClusterIPs and node ports in use with those that are allocated, reports findings, and repairs the
// safe ones.
//
// [KubeCluster] reads, watches and writes Services, IPAddress objects and ServiceCIDRs; package
// rangestore does so for the bitmaps in etcd. One goroutine owns all state of a term: watch events,
// results of workers and requests reach it through channels. It makes a pass after a change, when a
// grace period may be over, and every twenty seconds. A pass compares, queues findings, begins
// repairs, stores findings and publishes a [Snapshot], which any goroutine may read. It reads and
// writes nothing in Kubernetes. Workers do that, each for one finding. A new term keeps only what
// package repairstore has.
//
// # Invariants
//
//   - Before every watch has listed its objects, nothing is compared and nothing is written, except
//     the create of an address that a replacement has deleted.
//   - A finding that something in use is not allocated, or has the wrong parent, opens only after
//     live reads confirmed it. Watches may be out of step, and a deleted Service then looks like
//     one that lost its address. A read that fails keeps only its own finding pending.
//   - Each finding is one item of a work queue, with its own backoff, and never in two workers.
//     What is in use and free comes first. Items whose last attempt failed take half of the workers
//     at most. A request that hangs, is refused or keeps losing to another writer delays no other
//     finding.
//   - A plan is stored before its first step is applied. The result of a step is stored before the
//     next step of its finding, except between the delete and the create of a replacement. A new
//     leader therefore checks a step that was applied but not recorded, and finds it unneeded.
//   - Nothing comes between the delete and the create of a replacement: all reads and a dry run of
//     the create precede the delete. A create that fails is tried again at once, and then is the
//     first item of the queue, at this leader and at the next. Such a repair cannot be cancelled.
//   - Right before each step, its preconditions are read live, first the address or range and then
//     the Services; for steps that set bits, the other way round. A step that says which Service
//     owns an address, or that frees something, needs a list of all Services. Only an address that
//     is free may be allocated without that list if it cannot be read. The write requires the
//     version that was read. A step whose preconditions no longer hold is not applied, and neither
//     are the later steps of the same finding.
//   - A bit is cleared only at a revision that the watch has reached, and only after this term
//     watched it unused for the whole grace period. A bit that was cleared and set again meanwhile
//     looks the same and belongs to another Service.
//   - A refused step of an automatic repair stays pending and is counted: one repair with many
//     attempts. A refused step of a person's repair fails at once.
//   - The stores are asked for every twenty seconds. The audit begins again when the same other
//     answer has come three times. While answers differ, nothing in the doubtful store is repaired.
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
