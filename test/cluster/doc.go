// Package cluster tests Trivet on a cluster with real nodes: kubelets, containerd and runc, a
// control plane of static Pods, and Trivet's servers beside it. It needs root; without the flags
// that start a cluster, only what needs none is tested.
package cluster
