// Package slicecontroller keeps the EndpointSlices of the Services of the held shards as the domain
// packages plan them: index, desired, pack and hints.
//
// Promise: while the shard of a Service is held, every change that concerns the Service leads to a
// sync of it. A sync that fails is repeated with a growing pause until it succeeds, and does not
// delay other Services. Reads are answered from the same cache, for the Services of all shards.
//
// A Syncer queues, plans, writes, retries and takes over shards. Its source says what the slices
// are made from: Controller is the source of the slices of Services. Package mirrorcontroller has
// another Source and a Syncer of its own, which always plans all slices of an object.
//
// A Pod event goes this way: package kube calls PutPod; the index says which Services it concerns;
// they wait in a queue, most urgent first, for as long as the Batcher says; a worker syncs each:
// plan, write, and store the result in the cache.
//
// A sync after changes of Pods plans only those Pods, from the placement of the Service's
// endpoints. It plans the whole Service if anything else happened: the Service changed, another
// writer wrote a slice, a write failed, a term began, or hints depend on all Nodes. Both plans are
// equal.
//
// The cache is written through: the answer of a write is in it before the next sync, and the later
// event of that write is ignored. So a sync never waits for a watch. The resourceVersion of a slice
// decides: an event with an older version is ignored; a newer version comes from another writer and
// leads to a sync. After a conflict only the slice in conflict is read, and the Service is planned
// again; the other writes of the plan are still made. The cache has what kube-apiserver answers,
// which admission may have changed.
//
// Writes of one plan run concurrently. A write that removes endpoints which another write adds runs
// after it.
//
// Families, sets of ports and slices are independent. A change that fails is retried with a pause
// of its own, and delays only changes that remove an address which it adds. An update that is
// denied is written without its new endpoints. A slice that is stored otherwise than it was written
// has failed; a new slice that is stored under labels by which it is not found again is deleted.
// The whole Service waits only if it could not be planned, or if kube-apiserver throttles.
//
// An event of a slice that is being written is left to the answer of the write. If the
// answer is inconclusive, the next sync reads the slice before it plans. If the term has ended, the
// slice is read anyway, so that this replica does not show an old state.
//
// A shard is held from the call of RunShard to its return. The term begins with a list of the
// slices, so that a late watch does not hide the writes of the last leader. It plans only when the
// watches of all other kinds have shown what a read showed after its beginning, so that a late
// watch does not revert these writes either. Then each Service of the shard is synced. Every write
// uses the context of the shard's term. RunShard returns after the syncs of its shard, so the next
// leader never writes concurrently. What is known of a Service besides the cache ends with the
// term.
//
// Contention: if another writer keeps reverting what is written here, changes without an effect on
// traffic wait, and the answer to a change of the other writer waits for up to a second. Changes of
// Pods, Nodes and the Service are written as without contention. Annotations are no contention.
// Compaction has the lowest priority and one write budget for all Services, so that a cluster is
// not rewritten when it becomes quiet. It ends when its Service changes. If it fails it is tried
// again with a growing pause.
//
// Requests: Reconcile syncs a Service ahead of all others. A request may name the fingerprint of
// the plan that it wants; another plan is then not applied for it. A request waits in the same
// queue as a change, so it never delays one, and each of its writes has an Outcome.
//
// Changes: the change log has the last change of each Service, and 10,000 deleted Services at most.
// A reader that is further behind must list again.
//
// Cost: one cache, one queue and one set of workers serve all shards. A held shard has one
// goroutine, which sleeps.
//
// Locks: the index has its own, shardTracker.mu guards the held shards and the queue, ownedShard.mu
// the records of a term. None of them is held across planning or I/O. No other lock is taken while
// one is held, except those of the queue, the priority queue and the compaction budget. The queue
// gives a Service to one worker at a time; a placement belongs to the sync that took it.
//
// Not done: the package does not watch, and does not know terms: the context of RunShard must end
// with the term. A write of the last leader may still be on its way when a term begins. Then its
// resourceVersion or name conflicts with the first write here, or it is seen as another writer's.
package slicecontroller
