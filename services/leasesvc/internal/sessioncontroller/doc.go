// Package sessioncontroller runs the sessions of the held shards. One goroutine, the owner, owns
// the session table and the schedule of Lease writes of all held shards; callers send it batches
// and calls.
//
// Promise:
//   - A shard's sessions begin with its term and are dropped with it. Only holders that beat under
//     the term, or that a checkpoint names as silent, have a session. So a takeover expires no live
//     holder and revives no expired one.
//   - RunShard returns after all writes that were made under the shard's term.
//   - The owner works in memory. It never waits for the kube-apiserver or etcd.
//   - The clock stands still while the process does not run (stopped, starved, host suspended), so
//     holders do not expire for beats that could not be received. See package monotonic.
//   - After Run has returned, all calls fail with ErrStopped.
//
// Beats of Alive sessions do not pass through the owner. Batches wait in a bounded queue; callers
// of Process block while it is full. Work on many sessions (transitions, the end of a shard, lists,
// watches) is done in portions, so that batches are processed in between. A watch returns the
// newest state of each session. A watcher that has missed more than 65,536 deletions gets
// ErrCompacted.
//
// Checkpoints stores the silent holders of a shard in etcd under its term, and restores them before
// any holder of the shard is heard at the next replica.
//
// The controller writes no Lease. StartWrites returns what to write, FinishWrite takes the result.
// Callers say which shard a holder belongs to.
package sessioncontroller
