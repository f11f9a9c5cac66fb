// Package engine joins the cores into the work of slicesvc: it takes in what
// the cluster has, keeps it indexed, and during a term brings the slices of
// every Service in line.
//
// Promise: every change that is put in leads, while Run is running, to a pass
// over each Service it may concern; a pass that fails is repeated with a growing
// pause until it succeeds, and costs no other Service anything. A Service is
// never planned from a cache older than what was written for it. Reads answer
// from the same cache, with or without a term.
//
// Ownership: the index belongs to whoever holds cache.mu, which is never held
// while planning or writing; the ledger (what was written, what failed, what is
// queued) to whoever holds ledger.mu; neither is taken while holding the other.
// A Service is worked on by one worker at a time, which the queue sees to.
//
// What it does not do: it does not watch a cluster, and it does not know what a
// term is. Run lasts for one; the context it is given must end with it.
package engine
