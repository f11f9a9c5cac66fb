// Package simtest has what tests beside upstream's own code share: our services in this process and
// kube-controller-manager beside it on a real control plane, Nodes with their kubelets, and what
// was seen of an object over time.
package simtest
