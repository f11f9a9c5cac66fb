// Package merge makes one answer out of the answers of several replicas: one status of the cluster,
// one list out of their pages, and one view out of what their watches report.
//
// It has no I/O, no clock and no context. It never changes its inputs. A status refers to the
// answers instead of copying them, so neither may be modified afterwards.
//
// # Status
//
//   - An answer counts only if it comes from the replica that was asked. An address outlives a
//     process: the successor of a dead replica may answer a call to its predecessor.
//   - Of two claims to a shard the higher epoch wins. Of two reports of one claim the holder's own
//     wins.
//   - A service without a registered replica, a shard without a leader, and a replica that is not
//     ready or does not answer are problems. A service with a problem is unhealthy, and so is the
//     cluster.
//
// # View
//
// A source reports all its items, a bookmark, and then changes. [View] merges the sources:
//
//   - Of two reports of a name the higher epoch wins; in one term the later report wins.
//   - In a partitioned view an item is removed [Hold] after the report of its removal. A replica
//     that loses a shard removes all its items, and the next holder reports them again: they only
//     moved.
//   - A source that fails keeps its items until it has reported everything again, or has left.
//   - In a replicated view an item stays while any source reports it. The holder of its shard has
//     the highest epoch; the removal of an item counts at once.
//   - In an exclusive view each stream replaces the one before. Readers get all its items as Added,
//     and the items that it does not report as Removed.
//
// A [Reader] gets each item as Added, then Modified, then Removed. It skips states between two
// calls, but never the last one. A removed item is kept until the last reader that has it was told.
package merge
