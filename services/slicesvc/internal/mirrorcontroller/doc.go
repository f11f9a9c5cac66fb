// Package mirrorcontroller keeps the mirrored EndpointSlices of the Endpoints objects of the held
// shards as packages mirror and pack plan them. It is the Source of a slicecontroller.Syncer, which
// queues, plans, writes, retries and takes over shards.
//
// Promise: while the shard of an Endpoints object is held, every change of it, of the Service of
// its name and of its slices leads to a sync. A sync plans all slices of the object. Mirrored
// slices without a reason to exist are deleted, also those that are found when a term begins and
// have no Endpoints object.
//
// A slice that kube-apiserver refuses is tried again with a growing pause of a minute at most,
// without end. The other slices of the object are written meanwhile. A change waits for a refused
// one only if it removes an address that the refused one adds.
//
// Cache: an Endpoints object is kept whole only if it can be mirrored: its Service has no selector
// or does not exist, and neither its labels nor its annotations forbid it. Of all others only the
// name and the version are kept, because they are as large as the slices of the Services. If the
// selector of a Service goes, its Endpoints object is read before the next plan.
//
// Events and warnings are about a change: what is published about an Endpoints object is published
// again only if it differs, or after another replica took over. The number of mirrored Endpoints
// objects is a gauge.
//
// Owned in Kubernetes: the EndpointSlices whose managed-by label is mirror.ManagedBy, with their
// labels, endpoints and ports, and with the annotations of the Endpoints object; Events of
// Endpoints objects. Endpoints objects and Services are only read.
//
// Invariants: those of slicecontroller. Package mirror decides what is mirrored, and package pack
// how; this package decides neither.
//
// Locks: cache.mu guards the objects, reports.mu what was found at the last sync of each object.
// None is held across planning, I/O or a call of another package.
package mirrorcontroller
