// Package slicesvc keeps the EndpointSlices of every Service that has a
// selector, in place of the endpointslice controller of kube-controller-manager.
//
// Promise: after quiet, every such Service has the endpoints that controller
// would give it, in no more slices: one address family and one set of ports to a
// slice, owned by the Service and labelled like it, an empty one where a family
// has no endpoints. Hints keep that controller's bounds (internal/hints). A change
// costs the Services it concerns and nobody else, and of these what it touches.
// Slices that upstream left behind, under the same managed-by label, are adopted
// as they are. A Service that is quiet is compacted: its slices become fewer.
//
// Invariants:
//   - Decisions are pure (internal/index, desired, hints, pack, placement).
//     PlanService plans the whole of a Service, and so may a pass; one that plans
//     the changed pods alone comes to the same plan. Compaction it does not show.
//   - Nothing is written outside a held term of the Service's shard. Each update
//     carries the resourceVersion, each deletion UID and resourceVersion, of the
//     slice it was planned from, and new slices have names made from what they are
//     for: a writer that does not know yet that its term is over is refused.
//   - A Service is not planned from a cache older than our own writes for it in
//     the same term, nor than the last term's.
//   - Slices whose managed-by label is not ours are never touched, and what
//     others add to ours beside labels and endpoints (annotations, finalizers,
//     owners) stays.
//
// Services are divided into shards (--shards) by a hash of namespace and name,
// and the shards among the replicas; all replicas work at the same time. Caches
// are whole on every replica, so each answers reads and plans for all Services,
// and takes a shard over without filling a cache first.
//
// A shard that comes to a replica whose watch lags is not planned from the past:
// the term begins with a list of the slices there are, of which those that the
// cache does not show as new are read.
//
// Owned in Kubernetes: EndpointSlices with our managed-by label: labels,
// endpoints, ports, the annotation endpoints.kubernetes.io/last-change-trigger-time.
// Owned in etcd: nothing but the terms of this service.
//
// What it does not do: slices of a Service that is or becomes ExternalName or
// loses its selector are left as they are, unless --cleanup-selectorless is set;
// slices of a deleted Service are left to the garbage collector; hand-written
// Endpoints are not mirrored; somebody else who keeps undoing what is written is
// reported, and not fought (internal/contention).
package slicesvc
