// Package terms tests the two promises of internal/term on a real etcd under faults: no two
// replicas act for one shard with effect, and no shard stays without a replica for longer than the
// bound.
//
// A history is one run of three to five replicas, each in its own process, on one etcd. Every term
// body writes its epoch, under its guard, into the register of its shard. Every replica reads all
// registers. A recorder follows etcd. Package history analyzes the logs of the replicas and the
// record of etcd, and defines every violation.
//
// Faults (package schedule): SIGKILL; SIGSTOP for less and for more than the TTL; a blocked
// direction between a replica and etcd; a revoked lease; a compaction while a replica is
// disconnected; a killed etcd. The seed fixes the faults and their times. The interleaving of the
// processes is not reproducible.
//
//   - TestHistories: random faults cause no violation.
//   - TestQuorum: terms end when etcd loses its quorum, and work resumes with it.
//   - TestUnguarded: replicas without checks and guards cause violations, and the analysis finds
//     them.
//
// Commands:
//
//	go test ./test/faults/terms                                    20 short histories, seeds 1 to 20
//	go test ./test/faults/terms -faults.first=7 -faults.seeds=1 -v the history with seed 7
//	make faults SEEDS=100 EACH=40                                  longer histories
//
// The histories find defects: over seeds 1 to 10, a session that trusts its lease for three extra
// seconds shows as 5 overlaps, and a guard that always holds shows as 13 stale writes and 2
// registers that are not linearizable.
//
// Not tested: a clock with a wrong rate, and a power loss. etcd runs without fsync, which a SIGKILL
// does not affect.
package terms
