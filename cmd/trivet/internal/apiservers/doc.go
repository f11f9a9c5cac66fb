// Package apiservers is `trivet apiservers`: the kube-apiservers that are known, and which of them pods are led to.
//
// A kube-apiserver is well when its sidecar found it ready and nothing is wrong with its entry. What is said of it besides comes
// from the replica that was asked; the package judges nothing else.
package apiservers
