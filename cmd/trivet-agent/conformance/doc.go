// Package conformance tests the endpoint of trivet-agent with upstream's clients before a real
// kube-apiserver that has the Node authorizer and NodeRestriction: the Lease controller of a
// kubelet, and the creation of certificates by TLS bootstrap and by rotation.
//
// It is a module of its own, so that the root module does not need upstream's controllers.
package conformance
