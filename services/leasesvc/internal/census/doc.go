// Package census is what readers see of all Nodes and zones while they are watched over.
//
// Promise: one goroutine publishes, any number read without waiting for it or for each other. A Node is immutable; only those
// that changed are made anew, so a pass in which nothing happened costs a glance at each and leaves no garbage.
//
// Every change of what is shown of a Node gets a revision. A Watcher goes through the revisions since its last look: the newest
// state of each Node wins, so one that is slow skips states and never misses the last. Signs of life alone are shown and are no
// change.
//
// Invariants: revisions only grow, also when the watching begins anew; a Node whose shard is not held here is kept as not held,
// so that whoever saw it before learns that it is gone from here.
//
// It decides nothing, and holds for readers nothing but what is published.
package census
