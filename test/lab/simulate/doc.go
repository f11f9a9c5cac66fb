// Package simulate writes a small fleet of Nodes, Services and Pods to a kube-apiserver and changes
// it, so that Trivet's services have work without a kubelet, a scheduler or a workload controller.
// One more Service has no selector, and a hand-made Endpoints object.
//
// Changes depend only on the state of the fleet and a seed, so a seed reproduces them. Only
// [Fleet.Create] and [Fleet.Churn] write. All objects have the label trivet.dev/simulated=true. A
// restarted fleet adopts objects with that label.
//
// The fleet is a load, not a part of the control plane: its client needs no term. It sends no
// heartbeats; package agent does that for [Fleet.Nodes].
package simulate
