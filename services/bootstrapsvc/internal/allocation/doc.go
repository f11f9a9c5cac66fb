// Package allocation compares the ClusterIPs and node ports that Services use with those that are
// allocated. It reports each difference as a Finding, and plans the writes that repair it.
//
// The caller puts Services, IPAddress objects, ServiceCIDRs and bitmaps into an Index.
// Index.Compare evaluates only the addresses and ports that a change concerns; the result equals a
// comparison of everything. A Finding carries the steps that repair it. PlanRepair orders the steps
// of many findings. Check decides from live reads, right before a write, whether a step is still
// valid.
//
// # Invariants
//
//   - Nothing that a Service uses is freed. A step that frees is safe only after a grace period.
//     During it, the subject stayed allocated and unused, without a gap in the watches, for longer
//     than a request to kube-apiserver can take, and several passes observed it. A gap, a new
//     object of the same name or a Service that uses the subject restarts it. Check then still
//     rejects the step if any Service of a live list names the subject, whatever its type.
//   - An unreadable value is reported and never rewritten: an unexpected range, a bitmap that is
//     longer than its range, an IPAddress whose name is not an address.
//   - Objects of other managers stay as they are. An IPAddress with another manager's label, or
//     with a parent that is not a Service, is at most reported.
//   - The package never decides between two Services. A duplicate names the rightful owner, and a
//     person recreates the other.
//   - Equal inputs give equal findings, steps and names, in the same order. Inputs are not
//     modified. An applied plan leaves nothing to plan.
//
// Codes and recipients follow kube-apiserver's repair controllers
// (pkg/registry/core/service/ipallocator/controller and portallocator/controller), so that both
// converge to the same state. The differences protect what is in use:
//
//   - A deleted IPAddress is reported at once, not at the next resync.
//   - An IPAddress in the name of the wrong Service is deleted and created again for its user, not
//     only deleted.
//   - Labels are corrected in place, so that the address stays allocated.
//   - A pass does not count as an observation of the unused subjects of a store while a write to it
//     meets conflicts.
//   - An address that is not in its canonical form is reported: kube-apiserver deletes its
//     IPAddress again and again.
//   - An IPAddress that is being deleted and that finalizers keep is reported after a grace period.
//   - An annotation of an IPAddress is no change: a step compares the content, and its write
//     requires the version that was read for it.
//
// The package does no I/O and reads no clock. One goroutine owns an Index; any goroutine may read
// what it returns.
package allocation
