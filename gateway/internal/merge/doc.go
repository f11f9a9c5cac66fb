// Package merge makes one answer out of the answers of several replicas: one status of the cluster,
// one list out of their pages, one list of shards, and one view out of what their watches report.
//
// It has no I/O, no clock and no context. It never changes its inputs, and results refer to them
// instead of copying them, so neither may be modified afterwards.
//
// # Status
//
//   - An answer counts only if it comes from the replica that was asked. An address outlives a
//     process: the successor of a dead replica may answer a call to its predecessor.
//   - Of two claims to a shard the higher epoch wins. Of two reports of one claim the leader's own
//     wins.
//   - A service without a registered replica, a shard without a leader, and a replica that is not
//     ready or does not answer are problems. A service with a problem is unhealthy, and so is the
//     cluster.
//
// # View
//
// A source reports its items, a bookmark that names the shards of these items, and then changes and
// further bookmarks. [View] merges the sources into a [Sink]:
//
//   - Of two reports of a name the higher epoch wins; in one term the later report wins.
//   - In a partitioned view an item is gone when its leader reports so, or when a bookmark names
//     its shard and the source has not reported the item. Items of a shard that leaves a source
//     stay until another source names the shard.
//   - A source that fails or leaves keeps its items in the same way.
//   - In a replicated view an item stays while any source reports it. The leader of its shard has
//     the highest epoch.
//   - In an exclusive view the first bookmark of each stream replaces what the stream before
//     reported.
//
// [Missing] names what an answer lacks: it compares the shards that sources cover with all shards.
package merge
