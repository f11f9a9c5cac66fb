// Command controlplane builds etcd and kube-apiserver from their Go modules, so that a machine with
// only Go can run Trivet's tests on real servers.
//
//	go run . --out ../../.assets
//
// With --rivals it also builds kube-controller-manager, which Trivet is measured against and tested
// beside; nothing else needs it. With --nodes it builds kube-scheduler and kubelet as well, for a
// cluster with real nodes.
//
// The versions are those of go.mod, which lists the commands as tools. A stamp beside the binaries
// records their versions; while it matches, a run does nothing. An interrupted run leaves the
// previous binaries or none, never a part of one.
//
// What Trivet and a control plane have in common is compiled once, because both modules require the
// same version of each module that both use, and both are compiled with the same tags and without
// cgo. One other version, of golang.org/x/net for example, compiles again all that is above it.
//
// If KUBEBUILDER_ASSETS is set, its directory provides the binaries, and nothing is built.
package main
