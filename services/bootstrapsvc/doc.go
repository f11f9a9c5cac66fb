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
// # Promises about endpoints
//
// Package apiservers has all of them.
//
//   - A failed or empty read never removes the last address, and neither does a server that is not
//     ready. Only a server that stops in good order removes its own address, even as the last one,
//     unless --keep-last-address is set.
//   - A server that refuses connections or calls itself not ready is removed after three probes. A
//     server that accepts connections and does not answer is removed within fifteen seconds.
//   - A leader whose own server is not ready steps down if another server is ready, so that the
//     limits above hold for its own server too. It becomes available for leadership again after its
//     server has been ready for half a minute.
//   - An address leaves with its sidecar: at once at an orderly stop, which takes at most twenty
//     seconds, and after a kill when the session has expired.
//   - A key that would outlive its server, as a restore may leave it, makes no endpoint while other
//     servers are ready. It is reported and never deleted.
//
// # Promises about the baseline
//
//   - Drift is repaired within ten seconds, and in the EndpointSlice that is named after the
//     Service at once. A server that appears, disappears or fails is applied right after its key
//     changes. A missing namespace is created within a minute. Another writer that keeps changing
//     the objects is answered once a second.
//   - What cannot be repaired without cutting off clients is reported and stays: another ClusterIP,
//     a namespace or Service that is being deleted, a foreign EndpointSlice, an address of the
//     wrong family.
//   - A pass that finds no difference writes nothing.
//
// # Promises about allocations
//
// Packages allocation, allocationcontroller, rangestore and repairstore have all of them.
//
//   - Nothing that a Service uses is ever released. An unused allocation is released only after it
//     was watched without a gap for longer than a request can take, and right after a live list of
//     all Services did not have it.
//   - Only repairs that are safe by rule are automatic, and none with --auto-repair=off. Every
//     other repair needs an operator. An operator applies exactly the plan that was shown, or gets
//     an error.
//   - What cannot be read, what other controllers manage and what two Services claim is reported
//     and never written.
//   - The plan of a repair is recorded before its first step, and the result of each step before
//     the next step. After a crash, the next leader continues the repair.
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
// # Selection of endpoints
//
// --endpoint-reconciler-type selects the endpoints: the ready servers, as described here; a count
// of servers, which stay until others replace them; a fixed address or name; or none, so that the
// endpoints are not written. With --adopt-master-leases, servers of kube-apiserver's own reconciler
// count too. Their keys below <etcd-prefix>/masterleases are read and never written.
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
// # Written beside their owner
//
// kube-apiserver owns the allocations. A repair creates, relabels and deletes IPAddress objects of
// Services; each write is guarded by a read right before it. It also sets and clears bits in the
// bitmaps below <etcd-prefix>/ranges: of node ports and, in clusters up to 1.33, of ClusterIPs. It
// compares revisions as kube-apiserver does. The text of a range is never changed, and a missing
// bitmap is not created. kube-apiserver's own repair loops converge to the same state.
//
// # Limits
//
// Allocation for new Services is kube-apiserver's work. If two Services claim the same address or
// port, an operator decides. A second IP family of the Service is never removed. The default
// ServiceCIDR is only observed. If the last two replicas stop at the same moment, an address may
// stay published until one of them is back. A static address is not probed. An adopted server is
// probed on the port of this replica's own server.
package bootstrapsvc
