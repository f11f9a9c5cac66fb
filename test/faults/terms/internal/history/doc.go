// Package history judges what replicas did to the shards of one service.
//
// A [History] has two sources that know nothing of each other. Replicas log what they called, what they were answered and
// which checks of their terms they passed; a witness follows etcd and notes every version of every register and every claim.
// All times are readings of one clock, in nanoseconds: on Linux CLOCK_MONOTONIC is common to the processes of a machine.
//
// [Judge] asks four questions.
//
// Is the register of each shard linearizable? A write that was applied must find no higher epoch; a refused write and a read
// must see exactly what was written last. A write without an answer may have taken effect at any time after its call, or
// never: if somebody saw its value it took effect before that somebody's answer, and if nobody did it might as well have come
// after everything else, where no rule can be broken.
//
// Did a write take effect under an old epoch? By the witness's word: a version whose epoch is lower than that of a version
// before it, or whose term's key had gone, or was never created. Replicas that believe something else than the witness, about
// a write that was answered or about a term under which they act, are counted, too.
//
// Did two act at once? A replica acts for a shard from its first passed check of a term to its last. Each check carries
// the clock before and after it; of the first the later counts and of the last the earlier, so that an overlap is real and
// not one of measurement. One kind is excused and counted apart: a lease that somebody revoked by force may still be trusted by
// a holder that cannot hear of it, for no longer than the TTL; guards refuse its writes.
//
// Was a shard without a holder for too long? Such a gap lasts from the last passed check of one term to the first of the next,
// or to the end. It may last the bound, a TTL and a second. The bound counts from the gap's beginning, or from the end of
// the last fault within it: whoever was to step in may have been struck, and then its session has to run out or to begin
// anew first. While etcd is away nobody can step in; its absence is a fault until one election timeout after it serves
// again, because by that much a new leader prolongs every lease. A machine that stands still is a fault like any other; stalls
// are counted, so that nobody mistakes a starved machine for a proof.
package history
