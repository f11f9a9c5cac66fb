package sharding

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Member is one replica that is alive.
type Member struct {
	// ID is unique among the members.
	ID string
	// Shards is the number of shards into which the member divides the work.
	Shards int
	// Joined orders the members by the time they joined: the create revision of the member's key.
	Joined int64
	// Leaving says that the member hands its shards over and should get no others. While it is there its number of shards
	// counts as before, because it may still hold some.
	Leaving bool
	// Unready says that the member cannot do the work of a shard, or has yet to show that it can. It is ranked behind all
	// who can, and nobody gives it a shard.
	Unready bool
}

// Anchor returns the member whose number of shards counts: the one that joined first. It is false when there is none. A
// member that announces no shards takes no part.
func Anchor(members []Member) (anchor Member, found bool) {
	for _, m := range members {
		if m.Shards < 1 {
			continue
		}
		if !found || m.Joined < anchor.Joined || m.Joined == anchor.Joined && m.ID < anchor.ID {
			anchor, found = m, true
		}
	}
	return anchor, found
}

// Owner returns the id of the member that should hold the shard, "" when no member may. The order of members is irrelevant.
func Owner(shard int, members []Member) string {
	best, _ := owner(shard, eligible(members))
	return best.ID
}

// eligible returns the members that divide the work as the anchor does and are not about to leave.
func eligible(members []Member) []Member {
	anchor, _ := Anchor(members)
	var found []Member
	for _, m := range members {
		if m.Shards > 0 && m.Shards == anchor.Shards && !m.Leaving {
			found = append(found, m)
		}
	}
	return found
}

// owner is false when there is no member.
func owner(shard int, members []Member) (best Member, found bool) {
	for _, m := range members {
		if !found || before(shard, m, best) {
			best, found = m, true
		}
	}
	return best, found
}

// rank is how many of members should rather hold the shard than self: 0 for its owner.
func rank(shard int, members []Member, self Member) int {
	n := 0
	for _, other := range members {
		if before(shard, other, self) {
			n++
		}
	}
	return n
}

// before says whether a should rather hold the shard than b: first those who can do its work, among them by the hash. It is a
// strict order, because equal hashes are ordered by id.
func before(shard int, a, b Member) bool {
	if a.Unready != b.Unready {
		return b.Unready
	}
	ha, hb := score(shard, a.ID), score(shard, b.ID)
	return ha > hb || ha == hb && a.ID < b.ID
}

// score must never change between versions: replicas of both run side by side during an upgrade and have to agree.
func score(shard int, id string) uint64 {
	var digest xxhash.Digest
	digest.Reset()
	_, _ = digest.Write(binary.BigEndian.AppendUint64(nil, uint64(shard)))
	_, _ = digest.WriteString(id)
	return digest.Sum64()
}
