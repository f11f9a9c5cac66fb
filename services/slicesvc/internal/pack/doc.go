// Package pack decides how endpoints lie in EndpointSlices.
//
// Promise: Make compares what a Service should have with the slices it has and
// gives the writes that lead from one to the other, each with its reason. It
// follows the policy of kube-controller-manager's endpointslice controller
// (k8s.io/endpointslice, Reconciler): endpoints stay where they are; slices that
// are written anyway are filled first, the fullest before the others; what
// remains goes into the one unchanged slice it fits most tightly, or into new
// slices; a slice that would be deleted is rewritten as one that would be
// created; a family without endpoints keeps one empty slice.
//
// Where upstream's outcome depends on chance, ours does not: endpoints and
// slices are taken in a fixed order and new slices get names made from what they
// are for, so that two writers with the same view try the same names and one of
// them is refused.
//
// It departs from upstream on purpose in three corners: endpoints above the
// limit are moved when the limit was lowered; the empty slice of an earlier
// Service of the same name is replaced; and an empty slice that others left is
// reused or becomes the placeholder, where upstream may keep it beside the others.
//
// Invariants: no I/O, no clock; inputs are never changed, and what a plan writes
// may share memory with them, so it must not be changed either; the order of
// inputs does not matter; a plan made after a plan was carried out is empty; no
// slice of a plan holds an endpoint twice, or more endpoints than allowed.
//
// What it does not do: it never touches slices that it is not given, it does
// not move endpoints between slices to save space, and it sets no topology
// hints (hints found on a slice are removed when that slice is ours).
package pack
