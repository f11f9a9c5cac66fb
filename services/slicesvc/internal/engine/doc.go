// Package engine joins the cores into the work of slicesvc: it takes in what
// the cluster has, keeps it indexed, and brings the slices of every Service in
// line whose shard is held.
//
// Promise: every change that is put in leads, while the Service's shard is held
// and Run is running, to a pass over each Service it may concern; a pass that
// fails is repeated with a growing pause until it succeeds, and costs no other
// Service anything. Within a term a Service is never planned from a cache older
// than what was written for it. Reads answer from the same cache, for all shards.
//
// A shard is held from Hold to its return. It begins with a pass over each of its
// Services. Every write is made with the context of the Service's own shard, and
// Hold returns only when the passes it covers have, so that whoever holds the
// shard next finds nobody at work. What was remembered of its Services beside the
// cache goes with it: it may be wrong by the next term. The first plans of a term
// may therefore be made from a cache older than the last holder's writes; what
// they would update or delete is refused by resourceVersion, what they would
// create by name.
//
// Cost: one cache, one queue and one set of workers serve all shards. A shard
// held has one goroutine, which sleeps.
//
// Ownership: the index belongs to whoever holds cache.mu, which is never held
// while planning or writing; the ledger (which shards are held, what is queued)
// to whoever holds ledger.mu; the books of a term (what was written, what failed)
// to whoever holds the holding's mu. None of them is taken while holding another,
// save the queue's own. A Service is worked on by one worker at a time, which the
// queue sees to.
//
// What it does not do: it does not watch a cluster, and it does not know what a
// term is. Hold lasts for one; the context it is given must end with it.
package engine
