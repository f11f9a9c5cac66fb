// Package apiservers tests that the endpoints of default/kubernetes follow the kube-apiservers: a
// new server is published, a stopped, killed or frozen server is removed within the promised time,
// and a healthy server stays published.
//
// Two or three real kube-apiservers share a real etcd. Each is a separate machine for the product:
// it has its own address and a bootstrapsvc as its sidecar, a process that reaches Kubernetes only
// through that kube-apiserver. The oracle is the published endpoints, read through another
// kube-apiserver that has no faults.
//
//   - TestServers: each fault of a server, a sidecar or both, at the leader and at another machine.
//   - TestMigration: master leases of kube-apiserver, keys without a lease, and a restored etcd.
//   - TestHistories: random faults, and a power loss of all machines.
//
// Commands:
//
//	go test ./test/faults/apiservers                         every fault once: two minutes
//	go test ./test/faults/apiservers -run Histories -v \
//	        -args -apiservers.histories=10 -apiservers.each=20   long random histories, reproducible by seed
//
// Not tested: real machines and networks. All processes listen on loopback. The published addresses
// are not reachable, and only the sidecars' own probes determine whether a server is healthy.
package apiservers
