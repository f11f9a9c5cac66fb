// Package masterlease reads the keys in which kube-apiservers with a reconciler of their own say that they live.
//
// Each is <etcd-prefix>/masterleases/<ip>; its value is a v1 Endpoints object whose first address counts, in the encoding of
// kube-apiserver (pkg/controlplane/reconcilers/lease.go); its etcd lease lasts 15 seconds and is a new one at each refresh. A
// server that dies therefore loses its key by itself. Keys that were put back from a backup may have no lease, and then they stay
// for ever: that is told of each key, and nothing is concluded from it here.
//
// Nothing is ever written: the keys belong to kube-apiserver. A value that cannot be read is reported as such and never makes a
// read fail. The package keeps no state; methods are safe for concurrent use and block until etcd answers or their context
// ends. Errors wrap ErrUnavailable.
package masterlease
