// Package history analyzes what replicas did to the shards of one service.
//
// A [History] has two independent sources. Replicas log their requests, the answers and each passed
// check of a term. A recorder follows etcd and records every version of every register and every
// claim. All times are readings of one clock in nanoseconds: on Linux all processes of a machine
// share CLOCK_MONOTONIC.
//
// [Analyze] finds five kinds of violations:
//
//   - Not linearizable: the operations on a shard's register have no order that respects its rule
//     and their times. An applied write must find no higher epoch. A read or refused write must see
//     the last written value. A write without an answer may take effect at any time after its
//     request, or never. If an answer contains its value, the write took effect before that answer.
//   - Stale write: in etcd's record, a version has a lower epoch than an earlier version, or the
//     key of its term was deleted before or never created.
//   - Contradiction: the answer to a write, or the claim of a term under which a replica acts,
//     differs from etcd's record.
//   - Overlap: two replicas act for a shard at the same time. A replica acts from its first passed
//     check of a term to its last one. Each check has the clock before and after it. The later
//     value of the first check and the earlier value of the last check count, so an overlap is
//     never an error of measurement. After a forced revocation, a disconnected holder may trust its
//     lease for at most the TTL. Guards refuse its writes, and the overlap is only counted.
//   - Gap: a shard is without a holder for longer than the bound, a TTL plus one second. A gap
//     lasts from the last passed check of one term to the first of the next, or to the end. Each
//     fault within the gap restarts the bound, because the fault may affect the next holder. An
//     outage of etcd lasts until one election timeout after etcd serves again, because a new leader
//     extends every lease by that time. A stall of the machine is a fault, too. Stalls are counted,
//     because a report from a stalled machine proves less.
package history
