// Package keeper runs the sessions of one term: one goroutine owns the session table and the write slots, everybody else asks it.
//
// Promise: a Keeper begins empty and knows only holders that have beaten under its own term, so a takeover declares nobody
// dead and every holder has its whole TTL. It decides in memory: nothing it does waits for Kubernetes. Once Run has returned,
// every call answers ErrEnded.
//
// Time that the process could not receive in (stopped, starved, its host suspended) is not held against the holders: the
// Keeper's clock stands still meanwhile.
//
// Queues are bounded: callers of Exchange wait while the Keeper is behind, and a watcher that falls behind by more than
// Config.WatchQueue events is cut off rather than waited for.
//
// The Keeper writes no object. Start hands out what there is to write, Finish takes what came of it.
package keeper
