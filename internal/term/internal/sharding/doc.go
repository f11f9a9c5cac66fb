// Package sharding decides which replica should hold which shard, and what one replica should do about it now.
//
// It is pure: no clock, no context, no client. Every replica of a service computes the same [Owner] from the same members,
// so nobody has to assign anything; [Plan] then says which shards this replica claims and which it gives away. The plan is
// deterministic, ordered by shard, and empty once it has been carried out.
//
// Rules:
//   - The owner of a shard is the member with the highest hash of shard and member (rendezvous hashing). A member that leaves
//     moves only its own shards; one that joins takes only those which it now owns.
//   - Members that say they cannot do the work are ranked behind all others, so nobody gives them a shard. Where no member can,
//     the ranking is as if all could: vacant shards are claimed, because a duty that is tried is better than one that is not,
//     and no shard that runs is given away, because nobody would do better.
//   - A replica that is ranked behind others keeps the shards that it runs for as long as it may yet be able to do their work;
//     once it is known to fail, they go to those who can.
//   - A vacant shard is claimed by its owner at once. If the owner lets it lie, the member next in rank claims it after one
//     patience, the one after that after two, and so on: a replica that is alive but cannot work blocks nobody for long.
//   - A shard that this replica runs and another one owns is given away, no more than the budget allows; a shard taken over
//     from an owner that let it lie is kept for a settling time first, so that it does not bounce.
//   - Replicas that divide the work into different numbers of shards never work side by side, because the same object would
//     belong to two shards. The number of the member that joined first counts. Members with another number own nothing, give
//     away what they run, and wait until nobody runs shards of another division.
//
// What it does not do: it does not keep two replicas from claiming the same shard. The transaction that creates the shard's
// key only if it is absent does that; a plan made from stale members costs a refused claim, never an overlap.
package sharding
