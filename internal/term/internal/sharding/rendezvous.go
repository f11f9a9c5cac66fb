package sharding

import (
	"encoding/binary"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Member is one live replica.
type Member struct {
	// ID is unique among the members.
	ID string
	// Shards is the number of shards into which the member divides the work.
	Shards int
	// DryRun names the loops that the member plans and does not write.
	DryRun string
	// Joined is the create revision of the member's key. It orders the members by the time they
	// joined.
	Joined int64
	// Leaving says that the member releases its shards and should get no others. Its number of
	// shards still counts, because it may still hold some.
	Leaving bool
	// Rank orders the members by what they can do now. RankFor is the least time since the member
	// has this rank.
	Rank    Rank
	RankFor time.Duration
}

// Rank says how well a member can do the work of a shard. A member gets shards before all members
// of a later rank. Within a rank, the hash decides.
type Rank int

const (
	// Ready members can do the work.
	Ready Rank = iota
	// Able members can do the work now, but have not proven for long enough that they stay able.
	Able
	// Unable members cannot do the work now.
	Unable
)

// Anchor returns the member that joined first. Its number of shards and its DryRun count. Members
// that announce no shards are ignored. The result is false if no member is left.
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

// Owner returns the id of the member that should hold the shard, or "" if no member may. The order
// of members is irrelevant.
func Owner(shard int, members []Member) string {
	best, _ := owner(shard, participants(members))
	return best.ID
}

// participants returns the members that agree with the anchor and are not leaving.
func participants(members []Member) []Member {
	anchor, _ := Anchor(members)
	var found []Member
	for _, m := range members {
		if m.Shards > 0 && m.Shards == anchor.Shards && m.DryRun == anchor.DryRun && !m.Leaving {
			found = append(found, m)
		}
	}
	return found
}

// owner is false if there is no member.
func owner(shard int, members []Member) (best Member, found bool) {
	for _, m := range members {
		if !found || before(shard, m, best) {
			best, found = m, true
		}
	}
	return best, found
}

// rank returns the number of members that come before self for the shard: 0 for its owner.
func rank(shard int, members []Member, self Member) int {
	n := 0
	for _, other := range members {
		if before(shard, other, self) {
			n++
		}
	}
	return n
}

// before says whether a ranks before b: by rank, then by hash. It is a strict order, because equal
// hashes are ordered by id.
func before(shard int, a, b Member) bool {
	if a.Rank != b.Rank {
		return a.Rank < b.Rank
	}
	ha, hb := score(shard, a.ID), score(shard, b.ID)
	return ha > hb || ha == hb && a.ID < b.ID
}

// score must not change between versions: during an upgrade, replicas of both versions must agree
// on the owners.
func score(shard int, id string) uint64 {
	var digest xxhash.Digest
	digest.Reset()
	_, _ = digest.Write(binary.BigEndian.AppendUint64(nil, uint64(shard)))
	_, _ = digest.WriteString(id)
	return digest.Sum64()
}
