// Package simulate writes a small fleet of Nodes, Services and Pods to a real kube-apiserver and lets it change gently,
// so that the services above have honest work without a kubelet, a scheduler or a workload controller.
//
// What changes next follows from the fleet's state and a seeded random number alone, so that a seed reproduces a history
// of changes; only [Fleet.Create] and [Fleet.Churn] write. Everything created here carries the label
// trivet.dev/simulated=true, and a fleet that is started again adopts what it finds under that label.
//
// It is a load, not a part of the control plane: its client is not fenced by a term, and it is never pointed at a cluster
// whose owner did not ask for it. It sends no heartbeats; package agent does that for [Fleet.Nodes].
package simulate
