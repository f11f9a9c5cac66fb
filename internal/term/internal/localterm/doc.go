// Package localterm is the right to act and the moment it ends.
//
// A [Lease] is the local half of an etcd lease: it knows until when this process may act without having heard from etcd
// again. A [Term] is one shard held under such a lease. Both answer from memory and from the monotonic clock; nothing here
// talks to etcd, and nothing here can prolong a lease but [Lease.Extend], which its caller calls with the moment at which an
// acknowledged renewal was sent.
//
// Invariants:
//   - A lease that has passed its bound never comes back, not even when an acknowledgement arrives late.
//   - A check compares clocks. It does not trust that a timer has fired, so a process that was frozen and wakes up late is
//     refused before the runtime gets round to its timers.
//   - A term ends when its lease ends, when it is given up, or when its parent context ends; whichever is first is the cause.
//
// The monotonic clock of Linux stands still while the whole machine is suspended. A machine that sleeps and wakes therefore
// learns from etcd, not from its clock, that its lease is gone; until then only the guard of a term and the resourceVersion
// of a Kubernetes write protect others from it.
package localterm
