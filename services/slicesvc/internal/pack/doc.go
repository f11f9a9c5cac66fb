// Package pack decides how the endpoints of a Service, or of an Endpoints object that is mirrored,
// lie in EndpointSlices.
//
// Promise: Make compares what a Service should have with the slices it has, and returns the writes
// that lead from one to the other, each with its reason. A Placement returns the same plan for a
// change of some Pods, and costs what these Pods touch instead of what the Service has. Compact
// returns writes that only reduce the number of slices of a quiet Service, and Repeat those that
// must follow after endpoints have moved.
//
// The number of slices that Make writes is the policy of kube-controller-manager's endpointslice
// controller (k8s.io/endpointslice, Reconciler):
//
//   - An endpoint stays in its slice.
//   - Slices that are written anyway are filled first.
//   - The remaining endpoints go into the one unchanged slice that they fit most tightly, or into
//     new slices.
//   - A slice that would be deleted is rewritten instead of creating another one.
//   - A family without endpoints keeps one empty slice, the placeholder.
//
// Except for the departures below, no plan makes more writes than upstream's Reconciler, or leaves
// more slices. Which slice takes which endpoint is chosen so that later plans write fewer slices:
// see placer.
//
// Endpoints and slices are taken in a fixed order. New slices are named after what they are for:
// two writers with the same view try the same names, and one of them is refused.
//
// Make departs from upstream on purpose in two cases. If the ports of endpoints change, their slice
// gets the new ports, where upstream packs the endpoints anew, into fewer slices. The empty slice
// of an earlier Service of the same name is replaced, which is a write more.
//
// Some readers look at each slice alone, and lose an endpoint that moves to another slice. So Make
// moves none, but in four cases, of which upstream has the first three: the endpoints of a slice
// get different sets of ports; a slice has another owner; a slice is being deleted; a set of ports
// of a mirrored object needs fewer slices. Then, and in Compact, the slice that takes the endpoints
// gets the annotation TookEndpoints, and Repeat writes it once more.
//
// Changes that other writers make to the slices meet these rules:
//
//   - Endpoints belong to this writer. An unwanted one is removed: a duplicate, one without a Pod,
//     or one with an invalid address. A changed one is corrected, and a missing one comes back.
//   - Ports tell what a slice is for. A slice whose ports were changed, even to none, is reused.
//   - Labels are the Service's. Others are removed and missing ones come back. A difference in the
//     reserved keys alone causes no write, except for the label of headless Services.
//   - Annotations, finalizers and further owners stay, except for the time of the last change.
//   - A slice that the Service does not own is never updated but replaced. While the Service is
//     being deleted it stays: the garbage collector may have orphaned it.
//   - A slice that is being deleted is ignored.
//
// For the slices of an Endpoints object, Make uses MirrorRules. They follow the endpointslice
// mirroring controller of kube-controller-manager, with these differences:
//
//   - Each family is planned by itself, and a set of ports keeps its slice.
//   - Endpoints are compared as a multiset. A slice with one endpoint twice is corrected.
//   - The owner must have the UID of the Endpoints object.
//   - A slice that is being deleted counts for nothing.
//   - Annotations, finalizers, owners and hints of other writers stay. If all annotations together
//     are larger than kube-apiserver accepts, those of other writers go.
//
// Invariants: no I/O, no clock. Inputs are never changed. The slices of a plan may share memory
// with the inputs and must not be changed. The order of inputs does not matter. After a plan is
// applied, the next plan is empty. No slice of a plan has a duplicate endpoint. No slice takes
// endpoints above the limit, but it keeps those that it has.
package pack
