// Package kubeapi makes REST clients of the two API groups that slicesvc speaks
// to: core/v1 and discovery.k8s.io/v1.
//
// Promise: requests and answers are what client-go's typed clients make of them.
//
// Cost: the generated clientset knows every kind of Kubernetes. To link it, and to
// register all that when the process starts, costs more memory than slicesvc needs
// for thousands of pods, and none of it is used. So nothing that slicesvc is built
// from may import k8s.io/client-go/kubernetes or anything below it; a test holds
// it to that.
//
// Nor is anything asked for in compressed form: to compress lists and the events of
// watches costs the kube-apiserver about as much as to make them, which is worth it
// where the network is slow, and a control plane is no such place.
//
// What it does not do: it contacts nobody, and decides nothing about what may be
// written, which is up to the transport of the configuration it is given.
package kubeapi
