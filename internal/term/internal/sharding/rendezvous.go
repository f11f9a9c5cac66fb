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
	return owner(shard, eligible(members))
}

// eligible returns the ids of the members that divide the work as the anchor does and are not about to leave.
func eligible(members []Member) []string {
	anchor, _ := Anchor(members)
	var ids []string
	for _, m := range members {
		if m.Shards > 0 && m.Shards == anchor.Shards && !m.Leaving {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

func owner(shard int, ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	best := ids[0]
	for _, id := range ids[1:] {
		if before(shard, id, best) {
			best = id
		}
	}
	return best
}

// rank is how many of ids should rather hold the shard than id: 0 for its owner.
func rank(shard int, ids []string, id string) int {
	n := 0
	for _, other := range ids {
		if before(shard, other, id) {
			n++
		}
	}
	return n
}

// before says whether a should rather hold the shard than b. It is a strict order: equal hashes are ordered by id.
func before(shard int, a, b string) bool {
	ha, hb := score(shard, a), score(shard, b)
	return ha > hb || ha == hb && a < b
}

// score must never change between versions: replicas of both run side by side during an upgrade and have to agree.
func score(shard int, id string) uint64 {
	var digest xxhash.Digest
	digest.Reset()
	_, _ = digest.Write(binary.BigEndian.AppendUint64(nil, uint64(shard)))
	_, _ = digest.WriteString(id)
	return digest.Sum64()
}
