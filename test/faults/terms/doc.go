// Package terms proves by experiment what internal/term promises: that no two replicas ever act for one shard with effect,
// and that no shard stays without a replica for longer than it must.
//
// A history is what three to five replicas, each a process of its own, do to a real etcd while faults strike them: SIGKILL,
// SIGSTOP for less and for more than the TTL, a killed etcd, revoked leases, compaction, and partitions that swallow one
// direction only. Every body writes its epoch, under its guard, into the register of its shard; every replica reads all
// registers. What each of them called, got and was allowed to do is judged afterwards by internal/history, which also says
// exactly what counts as what. The seed of a history fixes its faults and their times, not what the machine makes of them.
//
//	go test ./test/faults/terms                                    20 short histories, seeds 1 to 20
//	go test ./test/faults/terms -faults.first=7 -faults.seeds=1 -v the one with seed 7
//	make faults SEEDS=100 EACH=40                                  longer
//
// That the histories find what they look for was tried with defects put in on purpose. Over seeds 1 to 10, a session that
// trusts its lease three seconds for too long shows as 5 times two holders, and a guard that always holds as 13 stale writes and 2
// registers that are not linearizable; TestCareless repeats that much on every run.
//
// What it cannot show: a clock that runs at the wrong rate, and a machine that loses power. etcd runs without fsync, which a
// killed process does not notice.
package terms
