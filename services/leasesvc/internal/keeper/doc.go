// Package keeper runs the sessions of the shards that are held here: one goroutine owns the session table and the write slots
// of all of them, everybody else asks it.
//
// Promise: a shard begins empty with its term, and only holders that have beaten under that term are known, so a takeover
// declares nobody dead and every holder has its whole TTL. With the term all of them are dropped, and who keeps the shard's
// term waits in Keep until every write made under it has returned. The Keeper decides in memory: nothing it does waits for
// Kubernetes. Once Run has returned, every call answers ErrEnded.
//
// Time that the process could not receive in (stopped, starved, its host suspended) is not held against the holders: the
// Keeper's clock stands still meanwhile.
//
// Queues are bounded: callers of Exchange wait while the Keeper is behind, and a watcher that falls behind by more than
// Config.WatchQueue events is cut off rather than waited for.
//
// The Keeper writes no object. Start hands out what there is to write, Begin says under which term, Finish takes what came of
// it. It does not know which shard a holder belongs to, nor who else keeps one: its callers say so.
package keeper
