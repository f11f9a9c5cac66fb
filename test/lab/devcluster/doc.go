// Package devcluster runs a real etcd and a real kube-apiserver on this machine, for tests and for
// `trivet-lab up`.
//
// Start returns a control plane whose /readyz is ok and whose system namespaces exist, or an error
// with a remedy. Stop leaves no process and no temporary file. The same holds for a Start that
// fails or is cancelled. When this process dies, its children die with it (on Linux by the kernel,
// see parentdeath_linux.go). The next Start then removes the temporary directory.
//
// Attach gives another process the use of a running control plane, with the methods of Cluster.
//
// AddAPIServer adds a kube-apiserver on the same etcd. Config.EtcdMembers gives etcd several
// members, which KillEtcdMember ends alone; CopyEtcd and RestoreEtcd take the data of all back to a
// moment.
//
// # Invariants
//
//   - Both servers listen on 127.0.0.1 only, with TLS only. etcd and the apiserver have separate
//     certificate authorities, so etcd refuses the certificate of a Kubernetes user.
//   - Keys and kubeconfigs are readable by their owner only.
//   - A server keeps its port and its data across StopEtcd/StartEtcd and
//     StopAPIServer/StartAPIServer.
//   - The children do not inherit this process's environment, for example ETCD_NAME.
//
// The cluster has no nodes, no scheduler and no controllers: there is no garbage collection, and a
// deleted namespace stays Terminating. etcd runs without fsync, so data does not survive a power
// loss. It is not for production.
package devcluster
