// Package apiserverscontroller observes the kube-apiservers and keeps the endpoints of the Service
// default/kubernetes as package apiservers plans them.
//
// Every replica runs two loops. The sidecar loop probes the kube-apiserver beside the replica and
// publishes the result as a key in etcd. The adoption loop probes kube-apiservers that have no
// sidecar and are known from kube-apiserver's own master leases. The leader also runs the endpoints
// loop. It reads all known servers, plans the Endpoints object and the EndpointSlices, and applies
// the plan.
//
// # Probes
//
// A [Prober] opens a new connection for each probe and verifies the certificate as the kubeconfig
// says. An open connection says nothing about a server that accepts no new ones. Certificates and
// tokens are read anew for each probe, so rotated files count at once. If the kubeconfig disables
// verification, the service warns: another program that answers in place of the server becomes an
// endpoint.
//
// # Published addresses without a key
//
// A missing key proves nothing about a server. While the leader's own probes of such an address
// succeed, it stays an endpoint. An address that never answered leaves after two failed probes. A
// sidecar that stops in good order marks its key as left, and the address leaves at once.
//
// # Keys of sidecars
//
// Key /trivet/<cluster>/apiservers/<ip>. The value is a small JSON object. The lease is the session
// of the replica that wrote the key, so the key disappears with its writer. One address has one
// writer: a replica never overwrites the key of another replica and reports [ErrTaken] instead. At
// its start a sidecar deletes the key of its own address, whichever replica wrote it: a sidecar
// that was killed may restart before its old session has expired. Two sidecars that are given one
// address by mistake look the same. The later one gets the address, and the earlier one reports
// that it is taken.
//
// Sidecars that share an address on purpose have keys /trivet/<cluster>/apiservers/<ip>/<replica>.
// Every write compares the revision that was read before it. A sidecar that stops in good order
// marks its key as left; the mark expires after a minute.
//
// A value that cannot be read becomes an entry that is not ready. It never makes a list fail. Only
// the sidecar of the same address deletes it, because a newer version may have written it. Unknown
// fields are ignored.
//
// # Master leases
//
// A kube-apiserver with a reconciler of its own keeps a key <etcd-prefix>/masterleases/<ip>. The
// value is a v1 Endpoints object whose first address counts, in kube-apiserver's encoding
// (pkg/controlplane/reconcilers/lease.go). Its etcd lease lasts 15 seconds and is new at each
// refresh, so the key of a server that dies disappears. A key that was restored from a backup may
// have no lease and then stays. The keys belong to kube-apiserver and are never written here.
package apiserverscontroller
