package sharding_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

// Whatever happened before: once faults, preferences and failing checks stay as they are, shards
// come to rest. That holds with members of an older version, which announce Unable for Able.
func TestModel_ShardsComeToRest(t *testing.T) {
	const rest = (2+120+12+6+2)*modelTTL + time.Minute // failing, the longest backoff, a borrowed shard
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(rapid.IntRange(1, 4).Draw(t, "replicas"))
		for _, r := range m.replicas {
			r.old = rapid.Bool().Draw(t, "old")
		}
		for range rapid.IntRange(1, 12).Draw(t, "faults") {
			m.disturb(t)
			for range rapid.IntRange(1, 200).Draw(t, "steps") {
				m.step()
			}
		}
		m.run(rest)
		before := m.shards
		m.run(rest)
		for number, s := range m.shards {
			if s.leader != before[number].leader {
				t.Fatalf("shard %d moves although nothing changes", number)
			}
			if s.leader == nil && m.isAnyAlive() {
				t.Fatalf("shard %d has no leader although a replica lives", number)
			}
		}
	})
}

func (m *model) isAnyAlive() bool {
	for _, r := range m.replicas {
		if !r.dead {
			return true
		}
	}
	return false
}

// announcedRank is the rank that others read from the member key of the replica.
func (r *modelReplica) announcedRank() sharding.Rank {
	if rank := r.rank(); !r.old || rank != sharding.Able {
		return rank
	}
	return sharding.Unable
}
