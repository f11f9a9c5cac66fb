// Package nodehealth tests leasesvc beside the real kube-controller-manager, whose node-lifecycle
// controller is switched off and whose other controllers all run: leasesvc judges the Nodes,
// upstream's taint eviction deletes the pods, and nothing goes back and forth between them.
//
// It needs the binary, and minutes: `make conformance`. Without -manager its tests are skipped.
package nodehealth
