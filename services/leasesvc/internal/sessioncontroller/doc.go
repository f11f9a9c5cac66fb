// Package sessioncontroller runs the sessions of the shards that are held here: one goroutine owns the session table and the write slots
// of all of them, everybody else asks it.
//
// Promise: a shard begins with its term, and only holders that have beaten under that term are known, or are known to have been
// silent before it; so a takeover declares nobody dead who beat, and every such holder has its whole TTL. With the term all of
// them are dropped, and who keeps the shard's term waits in Keep until every write made under it has returned. The Keeper decides
// in memory: nothing it does waits for Kubernetes. Once Run has returned, every call answers ErrEnded.
//
// Time that the process could not receive in (stopped, starved, its host suspended) is not held against the holders: the
// Keeper's clock stands still meanwhile.
//
// Beats of living holders go past the owner. What else comes waits in bounded queues: callers of Exchange wait while the Keeper
// is behind. Work on many sessions is cut into shares, so that none of them keeps a beat waiting: transitions, the end of a shard,
// lists, what watchers get. A watcher takes the newest state of each session; only one who is 65,536 deletions behind is cut off.
//
// The Keeper writes no object. Start hands out what there is to write, Begin says under which term, Finish takes what came of
// it. It does not know which shard a holder belongs to, nor who else keeps one: its callers say so.
package sessioncontroller
