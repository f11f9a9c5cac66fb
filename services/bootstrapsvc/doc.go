// Package bootstrapsvc keeps what a cluster needs before anything else can run in it: the four system namespaces, the
// Service default/kubernetes, and the Endpoints and EndpointSlice through which pods reach the kube-apiservers. It does
// from outside, for as long as it runs, what kube-apiserver does once from inside; beside it, run kube-apiserver with
// --endpoint-reconciler-type=none.
//
// Every replica is a sidecar: it probes its own kube-apiserver and says in etcd how that is. One of them leads and writes
// to Kubernetes.
//
// # Promises
//
//   - The last address is never taken away because of a failed or empty read, or because no server is ready. Only a
//     server that stops in good order takes its own address out, as the last one too.
//   - Drift is repaired within ten seconds, a server that comes, goes or fails within a moment of its key.
//   - What cannot be repaired without cutting somebody off is reported and left: another ClusterIP, a namespace or Service
//     being deleted, with what holds it, a foreign EndpointSlice, an address of the wrong family.
//   - An address leaves with its sidecar: at once at an orderly stop, which takes at most twenty seconds, or when the
//     session has lapsed after a kill.
//   - A pass that finds nothing to do writes nothing.
//
// # Loops
//
//	apiserver-probe       every replica  removes a stale key of its own address, then keeps the key up to date
//	system-namespaces     leader         every minute
//	kubernetes-service    leader         every ten seconds
//	kubernetes-endpoints  leader         every ten seconds, and as soon as a key changes
//
// # Owned
//
// In etcd: /trivet/<cluster>/apiservers/<ip>, each by the replica that serves the address, bound to its session. In
// Kubernetes: the existence of namespaces default, kube-node-lease, kube-public and kube-system; of Service
// default/kubernetes its labels provider and component, type, ports, selector, session affinity, a second IP family where
// one is asked for and, while it has none, ClusterIP; of Endpoints default/kubernetes subsets and the label
// endpointslice.kubernetes.io/skip-mirror; of EndpointSlice default/kubernetes endpoints, ports and the label
// kubernetes.io/service-name.
//
// # Not here
//
// Allocation of ClusterIPs and NodePorts is not audited. A second IP family that the Service once has is never taken from it.
// The default ServiceCIDR is looked at, and kept by kube-apiserver. Upstream's own keys under /registry/masterleases are
// not read. When the last two replicas stop at the same moment, an address may stay published until one of them is back.
package bootstrapsvc
