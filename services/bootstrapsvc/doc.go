// Package bootstrapsvc keeps what a cluster needs before anything else can run in it: the four system namespaces, the
// Service default/kubernetes, and the Endpoints and EndpointSlices through which pods reach the kube-apiservers. It does
// from outside, for as long as it runs, what kube-apiserver does once from inside; beside it, run kube-apiserver with
// --endpoint-reconciler-type=none. It also audits what is allocated to Services: it compares the ClusterIPs and node ports
// that they use with what kube-apiserver has allocated, says what does not agree, and mends it by plans that are shown,
// guarded and recorded.
//
// Every replica is a sidecar: it probes its own kube-apiserver and says in etcd how that is. One of them leads and writes
// to Kubernetes, through its own kube-apiserver as a rule.
//
// # Promises
//
// Of endpoints; package apiservers has all of them:
//
//   - The last address is never taken away because of a failed or empty read, or because no server is ready. Only a
//     server that stops in good order takes its own address out, as the last one too, unless it is told to stay.
//   - A server that refuses connections or says that it is not ready is out after three probes, one that accepts them and says
//     nothing within fifteen seconds. A leader whose own server is not ready gives its term to a replica beside one that is,
//     so that this holds for its own as well; it wants the term back only when its server has been ready for half a minute.
//   - An address leaves with its sidecar: at once at an orderly stop, which takes at most twenty seconds, or when the
//     session has lapsed after a kill.
//   - A key that would outlive its server, as a restore may leave it, makes nobody an endpoint while others are ready. It is
//     reported and never deleted.
//
// Of the baseline:
//
//   - Drift is repaired within ten seconds, in the EndpointSlice named after the Service at once; a server that comes, goes or
//     fails within a moment of its key; a missing namespace within a minute. Somebody who keeps writing otherwise is answered
//     once a second.
//   - What cannot be repaired without cutting somebody off is reported and left: another ClusterIP, a namespace or Service
//     being deleted, with what holds it, a foreign EndpointSlice, an address of the wrong family.
//   - A pass that finds nothing to do writes nothing.
//
// Of what is allocated; packages allocation, auditor, rangestore and journal have all of them:
//
//   - Nothing that a Service uses is ever freed. What nobody uses is freed only after it was watched without a gap for longer
//     than a request can take, and was looked for in a live list of all Services right before.
//   - Alone it mends only what is safe by rule, and nothing with --auto-repair=off. All else waits for a person, who applies
//     exactly the plan that was shown, or is refused.
//   - What cannot be read or understood, what others manage and what two Services claim is reported and never written.
//   - The plan of a repair is recorded before its first step, and what came of each before the next. Who leads after a crash
//     carries it on.
//   - Until a first audit has succeeded, a leader is not ready and says why; it keeps trying and never exits for it.
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
// kube-apiserver's own reconciler are adopted on request, from its keys below <etcd-prefix>/masterleases, which are read and
// never written. Package apiservers says what each way promises.
//
// # Owned
//
// In etcd, below /trivet/<cluster>/:
//
//	apiservers/<ip>            by the replica that serves the address, bound to its session
//	apiservers/<ip>/<replica>  the same, where several share the address
//	findings/<finding>         by the leader: what was found, since when, and how it ended
//	repairs/<id>/...           by the leader: the plan of a repair, what came of each step, and its end
//
// In Kubernetes: the existence of namespaces default, kube-node-lease, kube-public and kube-system; of Service
// default/kubernetes its labels provider and component, type, ports, selector, session affinity, a second IP family where
// one is asked for and, while it has none, ClusterIP; of Endpoints default/kubernetes subsets and the label
// endpointslice.kubernetes.io/skip-mirror; of EndpointSlice default/kubernetes endpoints, ports and the label
// kubernetes.io/service-name; where both families are asked for, the whole slice kubernetes-ipv6 or kubernetes-ipv4.
//
// # Written beside their owner
//
// What is allocated stays kube-apiserver's. A repair creates, relabels and deletes IPAddress objects that belong to Services,
// each write guarded by what was read right before it; and it sets and clears bits in the bitmaps below <etcd-prefix>/ranges,
// of node ports and, in clusters up to 1.33, of ClusterIPs, by comparing revisions as kube-apiserver does. The text of a range
// is never changed, and a bitmap that is missing is not made. kube-apiserver's own repairers steer to the same state.
//
// # Not here
//
// Nothing is allocated to a new Service: that is kube-apiserver's work. Nobody chooses between two Services that have the
// same; a person does. A second IP family that the Service once has is never taken from it. The default ServiceCIDR is looked
// at, and kept by kube-apiserver. When the last two replicas stop at the same moment, an address may stay published until one
// of them is back. A static address is not probed. A server that is adopted is asked on the port of this replica's own.
package bootstrapsvc
