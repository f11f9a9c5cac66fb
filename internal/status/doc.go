// Package status serves trivet.status.v1.StatusService for every service.
//
// A response is made from memory, in any state of etcd, the kube-apiserver or the term. Its lists
// are ordered. Text such as errors of loops is made valid UTF-8, because gRPC cannot send invalid
// text.
//
// Each part of a response is consistent, but the whole is not one snapshot. This is the only
// package of internal/ that imports a generated API.
package status
