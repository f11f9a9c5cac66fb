// Package slicecontroller joins the cores into the work of slicesvc: it takes in what
// the cluster has, keeps it indexed, and brings the slices of every Service in
// line whose shard is held.
//
// Promise: every change that is put in leads, while the Service's shard is held
// and Run is running, to a pass over each Service it may concern; a pass that
// fails is repeated with a growing pause until it succeeds, and costs no other
// Service anything. Reads answer from the same cache, for all shards.
//
// A pass after changes of pods plans those pods, by where their endpoints lie
// (package placement), and costs what they touch. Everything is planned when
// anything else happened: the Service changed, somebody else wrote a slice, a
// write failed, a term began; and always for Services whose hints depend on all
// nodes. Both plans are the same where both can be made.
//
// The cache is written through: what the answer of a write says is in it before
// the next pass, and what a watch shows of it later is no news. So a pass never
// waits for a watch. A slice is known by its resourceVersion: older states that
// are shown late count for nothing, newer ones are somebody else's and lead to a
// pass. A slice that was not as planned from is read, that one alone, and planned
// anew; what other slices the plan had is written all the same.
// Slices of a plan are written some at the same time; one that loses endpoints to
// others, only after these.
// What a watch shows of a slice during a write is left to the answer; where that
// says nothing, or what it calls for cannot be read, the next pass reads the slice
// before it plans; where there will be none, because the term has ended, it is read
// all the same, so that every replica soon shows what there is.
//
// A shard is held from Hold to its return. It begins with reading, past the
// watch, which slices there are, so that a watch that is late does not hide what
// the last holder wrote, and with a pass over each of its Services. Every write is
// made with the context of the Service's own shard, and Hold returns only when the
// passes it covers have, so that whoever holds the shard next finds nobody at
// work. What was remembered of its Services beside the cache goes with it.
//
// Somebody else who keeps undoing what is written (package contention) is not
// fought: the Service is left alone for a while, but for endpoints that are missing.
//
// Compaction has a budget of writes that all Services share, so that a cluster in
// which all has become quiet is not rewritten at once.
//
// Services wait in the order of what waiting costs: what somebody asked for,
// endpoints that clients use or may not use any more, others, compaction.
//
// Cost: one cache, one queue and one set of workers serve all shards. A shard
// held has one goroutine, which sleeps.
//
// Ownership: the index belongs to whoever holds cache.mu, which is never held
// while planning or writing; the ledger (which shards are held, what is queued)
// to whoever holds ledger.mu; the records of a term (what is due, what was
// written, what failed) to whoever holds the holding's mu; a Placement to the pass
// that took it. None of the mutexes is taken while holding another, save the
// queue's own, that of its line and the budget's. A Service is worked on by one worker at a time,
// which the queue sees to.
//
// What it does not do: it does not watch a cluster, and it does not know what a
// term is. Hold lasts for one; the context it is given must end with it. A write
// of the last holder that is still on its way to the kube-apiserver when a term
// begins is not seen by reading; it is refused, or refuses ours, by its
// resourceVersion or name, or shows as somebody else's.
package slicecontroller
