// Package endpointslices tests slicesvc beside the real kube-controller-manager, whose
// endpointslice controller is switched off and whose other controllers all run: Deployments, the
// garbage collector, the end of namespaces and the mirroring of Endpoints work with the slices of
// slicesvc as with those it stands in for, and nothing goes back and forth between them.
//
// It needs the binary, and minutes: `make conformance`. Without -manager its tests are skipped.
package endpointslices
