// Package conformance compares slicesvc with k8s.io/endpointslice, the library of
// kube-controller-manager's endpointslice controller.
//
// Both get random histories of a Service, its Pods, Nodes and slices. Both must publish the same
// endpoints, with the same conditions and hints, under the same ports and labels. From the same
// state, slicesvc must not leave more slices than upstream, and must not write more for the same
// number of slices. With the topology annotation the choice of endpoints is free: hints must be
// valid, and must exist if upstream has them.
//
// The slice controller as a whole gets one event after the other, and late events of its own
// writes. It reads slices, batches changes and compacts. When no work is left, its slices must be
// what one sync of upstream publishes, in no more slices than compaction leaves.
//
// The package is a module of its own, so that the root module does not depend on upstream's
// controller. Two intended differences do not occur in the histories: see package pack.
package conformance
