// Package bootstrapsvc keeps what a cluster needs before anything else can run in it: the four
// system namespaces, the Service default/kubernetes, and the Endpoints and EndpointSlices through
// which pods reach the kube-apiservers. It does continuously and from outside what kube-apiserver
// does once from inside; run the kube-apiserver beside it with --endpoint-reconciler-type=none. It
// also audits allocations: it compares the ClusterIPs and node ports that Services use with the
// ones that kube-apiserver has allocated. It reports the differences and repairs them by plans that
// are shown, guarded and recorded.
//
// Every replica is a sidecar: it probes its own kube-apiserver and publishes the result in etcd.
// One replica leads and writes to Kubernetes, usually through its own kube-apiserver.
//
// The packages of the domains have their promises: apiservers, baseline and allocation. The
// following ones are about the whole service.
//
//   - A server that refuses connections or calls itself not ready is removed after three probes. A
//     server that accepts connections and does not answer is removed within fifteen seconds.
//   - A leader whose own server is not ready yields at once to a replica whose server is ready, so
//     that the limits above hold for its own server too. After its server is ready again, it ranks
//     behind ready replicas for half a minute, and leads if there is none.
//   - An address leaves with its sidecar: at once at an orderly stop, which takes at most twenty
//     seconds, and after a kill when the session has expired.
//   - Drift is repaired within ten seconds, and in the EndpointSlice that is named after the
//     Service at once. A missing namespace is created within a minute. Another writer that keeps
//     changing the objects is answered once a second.
//   - Until a first audit has succeeded, a leader is not ready and reports the reason. It keeps
//     trying and never exits because of it.
//
// # Loops
//
//	apiserver-probe       every replica  deletes a stale key of its own address, then keeps the key up to date
//	masterlease-probe     every replica  probes adopted servers that have no sidecar
//	system-namespaces     leader         every minute
//	kubernetes-service    leader         every ten seconds
//	kubernetes-endpoints  leader         every ten seconds, and when a key or the EndpointSlice changes
//	allocation-audit      leader         when a Service or an allocation changes, and every twenty seconds
//
// # Owned objects
//
// In etcd, below /trivet/<cluster>/:
//
//	apiservers/<ip>            by the replica beside the server, bound to its session
//	apiservers/<ip>/<replica>  the same, where several servers share the address
//	findings/<finding>         by the leader: a finding, the time of its first observation, and how it ended
//	repairs/<id>/...           by the leader: the plan of a repair, the result of each step, and its end
//
// In Kubernetes:
//
//   - the existence of namespaces default, kube-node-lease, kube-public and kube-system
//   - of Service default/kubernetes: labels provider and component, type, ports, selector, session
//     affinity, a second IP family where it is wanted, and a missing ClusterIP
//   - of Endpoints default/kubernetes: subsets and the label
//     endpointslice.kubernetes.io/skip-mirror
//   - of EndpointSlice default/kubernetes: endpoints, ports and the label
//     kubernetes.io/service-name
//   - with dual stack, the whole slice kubernetes-ipv6 or kubernetes-ipv4
//
// kube-apiserver owns the allocations. A repair creates, relabels and deletes IPAddress objects of
// Services, and sets and clears bits in the bitmaps below <etcd-prefix>/ranges: of node ports and,
// in clusters up to 1.33, of ClusterIPs. kube-apiserver's own repair loops converge to the same
// state.
//
// # Limits
//
// Allocation for new Services is kube-apiserver's work. If the last two replicas stop at the same
// moment, an address may stay published until one of them is back. A static address is not probed.
// An adopted server is probed on the port of this replica's own server.
package bootstrapsvc
