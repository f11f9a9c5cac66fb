// Package index joins Services, Pods, Nodes and EndpointSlices, so that a change of one object
// costs what the change touches and not what the cluster holds.
//
// Promise: Put and Delete of an object name the Services whose endpoints or slices may have
// changed. Snapshot returns everything that a plan for one Service is made from.
//
//   - Each Service is filed under one label pair of its selector: the pair under which the
//     namespace has the fewest Services. A Pod finds its Services by its own label pairs.
//   - A Service has the set of its Pods. A new Service finds them by the rarest pair of its
//     selector.
//   - A Node has the Pods that are bound to it, and through them the Services whose endpoints wait
//     for the Node or carry its zone.
//   - A shard has its Services and its counts, so that the start of a shard's term costs what is in
//     the shard. The Index holds all shards.
//
// Invariants: no I/O, no clock. Objects are kept as given and never changed; of a Pod only the
// fields are kept that endpoints are made from. The result of a sequence of calls depends only on
// the last version of each object, not on the order of the calls. A Snapshot never changes.
//
// The package decides nothing about endpoints, and it does not know whether its objects are
// current.
package index
