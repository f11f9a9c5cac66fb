// Package conformance holds slicesvc's plans against what k8s.io/endpointslice does, the library that is the heart of
// kube-controller-manager's endpointslice controller.
//
// Random histories of a Service, its pods, nodes and slices are given to both. Both must publish the same endpoints with the
// same conditions and hints under the same ports and labels; slicesvc must never leave more slices than upstream does from
// the same state, and for as many slices never write more in one sync. Where the annotation for topology hints leaves the
// choice of endpoints open, hints must be valid, and there wherever upstream gives them.
//
// The same is asked of the whole engine, which hears of one change after the other and plans from these alone: what it has
// written when it comes to rest is what one sync of upstream's over everything would publish.
//
// It is a module of its own so that the root module does not depend on upstream's controller, and lies here because what it
// tests is internal to slicesvc. Two corners in which slicesvc departs from upstream on purpose do not occur in the
// histories: see package pack.
package conformance
