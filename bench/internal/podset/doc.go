// Package podset makes Services with many Pods in a real cluster, changes the Pods as kubelets and
// rollouts do, and sees by a watch when EndpointSlices say so.
//
// There are no kubelets: Pods are written straight into the state that one would report, all on one
// Node without a zone.
package podset
