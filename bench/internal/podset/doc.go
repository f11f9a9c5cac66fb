// Package podset creates Services with many Pods in a real cluster, and changes the Pods as
// kubelets and rollouts do.
//
// There are no kubelets. Pods are written with the status that a kubelet would report, all on one
// Node without a zone.
package podset
