// Package slicesvc writes the EndpointSlices of every Service that has a selector, in place of the
// endpointslice controller of kube-controller-manager. With the loop endpointslice-mirroring, which
// is off by default, it also writes the slices of hand-made Endpoints, in place of the
// endpointslice-mirroring controller.
//
// Promise: once changes stop, every such Service has the endpoints that the upstream controller
// would give it. An endpoint stays in its slice. A slice has one address family and one set of
// ports, and is owned by the Service and labelled like it. A family without endpoints has one empty
// slice. A change causes a sync of the Services that it concerns, and of no others. Slices that
// upstream left behind, under the same managed-by label, are adopted as they are. With
// --compaction=idle, slices of a Service that is quiet are compacted.
//
// Mirroring: the Endpoints object of a Service without a selector has the slices that the upstream
// controller would give it, unless the label endpointslice.kubernetes.io/skip-mirror or the
// annotation of a leader election forbids it. Slices without such an object are deleted. A slice
// that kube-apiserver refuses holds up no other. Addresses above
// --mirroring-max-endpoints-per-subset are in no slice, which an Event and a Problem say; with
// --mirroring-spill they are in further slices. Endpoints are read only while the loop is selected.
//
// Invariants:
//   - Decisions are pure: internal/index, desired, hints, mirror, pack. A sync plans the changed
//     Pods or the whole Service; both plans are equal. A sync of an Endpoints object plans all of
//     its slices. PlanServiceSlices shows the whole plan, without compaction.
//   - A write happens only in a held term of the Service's shard. An update carries the
//     resourceVersion of the slice that it was planned from, a deletion also the UID. Names of new
//     slices derive from their content. So a write of a replica whose term ended is refused.
//   - A plan never uses a cache that is older than this replica's own writes for the Service, or
//     than the writes of the last term.
//   - Slices with another managed-by label are never written. Annotations, finalizers and owners
//     that another writer adds to a slice stay.
//
// Services are divided into shards (--shards) by a hash of namespace and name, and the shards among
// the replicas. Every replica caches the whole cluster, so it answers reads for all Services and
// takes over a shard without filling a cache first. A term begins with a list of the slices; slices
// that the cache does not show in that version are read, so a late watch hides no writes of the
// last leader.
//
// Owned in Kubernetes: EndpointSlices with the managed-by label: labels, endpoints, ports, the
// annotations endpoints.kubernetes.io/last-change-trigger-time and trivet.dev/took-endpoints; of
// mirrored slices also the annotations of the Endpoints object. Owned in etcd: the terms of this
// service.
//
// Not done: slices of a Service that is ExternalName or has lost its selector stay as they are,
// unless --cleanup-selectorless is set. Then they are deleted, but if the Service's Endpoints are
// mirrored, only when the mirrored slices are written. The garbage collector deletes the slices of
// a deleted Service. If another writer keeps reverting slices, slicesvc reports it and backs off.
package slicesvc
