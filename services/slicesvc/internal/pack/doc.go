// Package pack decides how endpoints lie in EndpointSlices.
//
// Promise: Make compares what a Service should have with the slices it has and
// gives the writes that lead from one to the other, each with its reason. How
// many slices it writes is the policy of kube-controller-manager's endpointslice
// controller (k8s.io/endpointslice, Reconciler): endpoints stay where they are;
// slices that are written anyway are used up first; what remains goes into the
// one unchanged slice it fits most tightly, or into new slices; a slice that
// would be deleted is rewritten as one that would be created; a family without
// endpoints keeps one empty slice. No sync makes more writes than upstream's, or
// leaves more slices. Which slice takes which endpoint is chosen so that the next
// syncs make fewer: see places.
//
// Slices become fewer in two ways, neither of which upstream has. Of slices that
// are written anyway, one whose endpoints find room in another is deleted instead
// of updated: see join. And Compact gives writes for a quiet Service that have no
// other purpose.
//
// Where upstream's outcome depends on chance, ours does not: endpoints and
// slices are taken in a fixed order and new slices get names made from what they
// are for, so that two writers with the same view try the same names and one of
// them is refused.
//
// It departs from upstream on purpose in two corners, in both of which a sync
// may make more writes: endpoints above the limit are moved when the limit was
// lowered, and the empty slice of an earlier Service of the same name is replaced.
//
// What others do to our slices meets these rules, whoever they are:
//
//   - Endpoints are ours. One that is not wanted goes, be it a repeat, without a
//     pod behind it, or with an address that is none; one that was changed
//     becomes what it should be; one that was taken out comes back.
//   - Ports say what a slice is for. A slice whose ports were changed, be it to
//     none, to one without a number or to one twice, is used for something else.
//   - Labels are the Service's. Others go and missing ones come back, but the
//     reserved keys alone are no reason to write.
//   - Annotations, finalizers and further owners are their authors'. They stay,
//     except for the time of the last change.
//   - A slice that the Service does not own is never written, but replaced.
//   - A slice that is being deleted counts for nothing.
//
// Invariants: no I/O, no clock; inputs are never changed, and what a plan writes
// may share memory with them, so it must not be changed either; the order of
// inputs does not matter; a plan made after a plan was carried out is empty; no
// slice of a plan holds an endpoint twice, or more endpoints than allowed, save
// that slices of a Service that goes away keep those they have.
//
// What it does not do: it never touches slices that it is not given, and it does
// not decide when a Service is quiet.
package pack
