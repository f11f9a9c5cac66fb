// Package e2e tests the built commands as processes, over real sockets, on a real etcd and
// kube-apiserver.
package e2e
