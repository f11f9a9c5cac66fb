// Package slicesvc keeps the EndpointSlices of every Service that has a
// selector, in place of the endpointslice controller of kube-controller-manager.
//
// Promise: after quiet, every such Service has exactly the slices that
// controller would give it, topology hints excepted: one address family and one
// set of ports to a slice, owned by the Service and labelled like it, an empty
// one where a family has no endpoints. A change costs the Services it concerns
// and nobody else. Slices that upstream left behind, under the same managed-by
// label, are adopted as they are.
//
// Invariants:
//   - Decisions are pure (internal/index, desired, pack); PlanService shows what
//     the next pass will do because it is the same function.
//   - Nothing is written outside a held term. Each update carries the
//     resourceVersion, each deletion UID and resourceVersion, of the slice it was
//     planned from, and new slices have names made from what they are for: a
//     writer that does not know yet that its term is over is refused.
//   - A Service is not planned from a cache older than our own writes for it.
//   - Slices whose managed-by label is not ours are never touched, and what
//     others add to ours beside labels and endpoints (annotations, finalizers,
//     owners) stays.
//
// Caches are filled on every replica, so a standby answers reads and plans as
// the leader does, and takes over without reading the cluster first.
//
// Owned in Kubernetes: EndpointSlices with our managed-by label: labels,
// endpoints, ports, the annotation endpoints.kubernetes.io/last-change-trigger-time.
// Owned in etcd: nothing but the terms of this service.
//
// What it does not do yet: topology hints (those found on our slices are
// removed), sharding, compaction of slices that are half empty. What it does not
// do at all: slices of a Service that is or becomes ExternalName or loses its
// selector are left as they are; slices of a deleted Service are left to the
// garbage collector; hand-written Endpoints are not mirrored.
package slicesvc
