// Package e2e tests the built commands as a person meets them: as processes, over real sockets, on a real etcd and
// kube-apiserver. What single rooms promise is tested in those rooms.
package e2e
