// Package bootstrapsvc keeps what a cluster needs before anything else can run in it: the four system namespaces, the
// Service default/kubernetes, and the Endpoints and EndpointSlice through which pods reach the kube-apiservers. It does
// from outside, for as long as it runs, what kube-apiserver does once from inside; beside it, run kube-apiserver with
// --endpoint-reconciler-type=none. It also compares what Services use with what is allocated to them, says what does not
// agree, and mends it by plans that are shown, guarded and recorded.
//
// Every replica is a sidecar: it probes its own kube-apiserver and says in etcd how that is. One of them leads and writes
// to Kubernetes, through its own kube-apiserver as a rule.
//
// # Promises
//
//   - The last address is never taken away because of a failed or empty read, or because no server is ready. Only a
//     server that stops in good order takes its own address out, as the last one too, unless it is told to stay.
//   - Drift is repaired within ten seconds, in the EndpointSlice at once; a server that comes, goes or fails within a moment of
//     its key. Somebody who keeps writing otherwise is answered once a second.
//   - A server that refuses connections or says that it is not ready is out after three probes, one that accepts them and says
//     nothing within fifteen seconds. A leader whose own server is not ready gives its term to a replica beside one that is,
//     so that this holds for its own as well.
//   - A key that would outlive its server, as a restore may leave it, makes nobody an endpoint while others are ready. It is
//     reported and never deleted.
//   - What cannot be repaired without cutting somebody off is reported and left: another ClusterIP, a namespace or Service
//     being deleted, with what holds it, a foreign EndpointSlice, an address of the wrong family.
//   - An address leaves with its sidecar: at once at an orderly stop, which takes at most twenty seconds, or when the
//     session has lapsed after a kill.
//   - A pass that finds nothing to do writes nothing.
//
// # Loops
//
//	apiserver-probe       every replica  removes a stale key of its own address, then keeps the key up to date
//	masterlease-probe     every replica  asks servers that have no sidecar, where those are adopted
//	system-namespaces     leader         every minute
//	kubernetes-service    leader         every ten seconds
//	kubernetes-endpoints  leader         every ten seconds, and as soon as a key or the EndpointSlice changes
//	allocation-audit      leader         as soon as a Service or an allocation changes, and every twenty seconds
//
// # Ways to choose
//
// What endpoints are chosen from is an operator's decision: the ready servers, as described here; servers counted, which stay
// until another takes their place; a fixed address or name; or nothing, and then endpoints are left to others. Servers of
// kube-apiserver's own reconciler are adopted on request, from its keys below /registry/masterleases, which are read and never
// written. Package apiservers says what each way promises.
//
// # Owned
//
// In etcd: /trivet/<cluster>/apiservers/<ip>, each by the replica that serves the address, bound to its session; where several
// share an address, a key of each below it; and the memory of the audit below /trivet/<cluster>/findings and repairs. In
// Kubernetes: the existence of namespaces default, kube-node-lease, kube-public and kube-system; of Service
// default/kubernetes its labels provider and component, type, ports, selector, session affinity, a second IP family where
// one is asked for and, while it has none, ClusterIP; of Endpoints default/kubernetes subsets and the label
// endpointslice.kubernetes.io/skip-mirror; of EndpointSlice default/kubernetes endpoints, ports and the label
// kubernetes.io/service-name; where both families are asked for, the whole slice kubernetes-ipv6 or kubernetes-ipv4. What is
// allocated, IPAddress objects and kube-apiserver's bitmaps in etcd, is kube-apiserver's own: repairs write it as packages
// allocation and auditor say.
//
// # Not here
//
// Nothing is allocated to a new Service: that is kube-apiserver's work. Nobody chooses between two Services that have the
// same; a person does. A second IP family that the Service once has is never taken from it. The default ServiceCIDR is looked
// at, and kept by kube-apiserver. When the last two replicas stop at the same moment, an address may stay published until one
// of them is back. A static address is not probed.
package bootstrapsvc
