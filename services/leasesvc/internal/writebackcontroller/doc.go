// Package writebackcontroller writes Lease objects: it takes the due writes from the session
// controller, makes them, and returns the results. It also adopts the existing Leases of acquired
// shards and deletes orphaned ones.
//
// Promise:
//   - At most Config.Workers writes are in flight, and no more than writeback.ConcurrencyLimit
//     allows. Each is bounded by Config.Timeout. The most urgent write starts next.
//   - A write is made under the term of its shard, never after it. Each job that was taken gets a
//     result, also at the end.
//   - No heartbeat waits for a write. A slow kube-apiserver delays Leases, not sessions.
//   - A Lease is created with the UID of its Node as owner, or not at all. A Lease without that
//     owner gets it with the next write. After a Lease was deleted, the kube-apiserver confirms its
//     Node, not the cache.
//   - An update is one PUT guarded by the resourceVersion. A Lease is deleted only if this service
//     was the last to renew it, guarded by its UID and resourceVersion.
//
// A pass fails if writes were tried and none succeeded, or if one panicked. A panic costs one
// write, which is repeated. A Lease without a Node and a Lease of another holder are states of
// these Leases, not failures.
//
// A throttled write fails at once if the client was made by kubeconn.FailFastOnThrottle.
package writebackcontroller
