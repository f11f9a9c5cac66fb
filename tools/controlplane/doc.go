// Command controlplane builds etcd and kube-apiserver from their Go modules, so that a machine with
// nothing but Go can run Trivet's tests on the real thing.
//
//	go run . --out ../../.assets
//
// With --rivals it also builds kube-controller-manager, which Trivet is measured against and tested
// beside; nothing else needs it.
//
// The versions are those of go.mod and nothing else; the modules are listed there as tools. A stamp
// beside the binaries says what they were built from: as long as it is true, a run does nothing. A
// run that is interrupted leaves the previous binaries or none, never half of one.
//
// Where KUBEBUILDER_ASSETS is set, somebody else provides the binaries, and nothing is built.
package main
