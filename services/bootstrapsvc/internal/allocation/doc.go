// Package allocation compares what Services use with what is allocated, says what is wrong, and in which order what may
// be written to mend it.
//
// A Ledger is told of Services, IPAddress objects, ServiceCIDRs and bitmaps as they come and go, and judges only the
// addresses and ports that something changed about. What it finds is the same as if everything were compared anew, which
// is what Whole does. A Finding carries the steps that would mend it; PlanRepair orders those of many findings; Check says
// at the last moment, from what was read live, whether a step may still be done.
//
// It promises:
//
//   - Nothing that a Service uses is ever freed. A step that frees is safe only after its subject stayed allocated and
//     unused, without a gap in what was watched, for longer than a request to kube-apiserver can take, and was sighted in
//     several passes; a gap, a new object of the same name or a Service that uses it begin that time anew. Even then Check
//     refuses it when any Service of a live list names the subject, whatever its type.
//   - What cannot be understood is reported and never rewritten: a range that is not the expected one, a bitmap that
//     reaches beyond its range, an IPAddress whose name is no address.
//   - What others keep is theirs. An IPAddress that another manager labelled, or whose parent is no Service, is at most
//     reported.
//   - No two Services are chosen between. A duplicate names the rightful owner, and a person recreates the other.
//   - The same inputs give the same findings, steps and names, in the same order. Inputs are never changed or kept for
//     writing, and a plan that was carried out leaves nothing to plan.
//
// What is wrong and who is told so follows kube-apiserver's own repairers (pkg/registry/core/service/ipallocator/controller
// and portallocator/controller), so that both steer to the same state. It departs from them where they endanger what is
// in use: a deleted IPAddress is missed at once and not at the next resync; one in the name of a Service that does not use
// it is replaced for its user and not just deleted; labels are corrected in place, so that the address is never free in
// between; and a pass that met a conflict does not count against a leaked port.
//
// The package does no I/O and knows no clock: time is a parameter. A Ledger belongs to one goroutine; what it returns may
// be read by any.
package allocation
