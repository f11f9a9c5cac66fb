// Package devcluster runs a real etcd and a real kube-apiserver on this
// machine, for tests and for `trivet up`.
//
// # Promise
//
// Start returns a control plane whose /readyz is ok and whose system
// namespaces exist, or an error that says what to do; Stop leaves neither a
// process nor a temporary file behind. The same holds when Start is cancelled
// half way or fails. When this process dies, its children die with it (on
// Linux the kernel sees to that, see parentdeath_linux.go); a temporary
// directory that such a death leaves is removed by the next Start.
//
// Further kube-apiservers can join the first on its etcd, see AddAPIServer.
//
// # Invariants
//
//   - Both servers listen on 127.0.0.1 only and speak TLS only. etcd and the
//     apiserver have certificate authorities of their own, so a certificate
//     made for a Kubernetes user opens no door of etcd.
//   - Keys and kubeconfigs are readable by their owner only.
//   - A server keeps its port and its data across StopEtcd/StartEtcd and
//     StopAPIServer/StartAPIServer.
//   - The children see none of this process's environment: an ETCD_NAME in
//     somebody's shell changes nothing.
//
// # What it does not do
//
// There are no nodes, no scheduler and no controllers, so nothing garbage
// collects and a deleted namespace stays Terminating. There is no durability
// against power loss: etcd runs without fsync. It is not for production.
package devcluster
