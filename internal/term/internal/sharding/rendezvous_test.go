package sharding_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

func members(n, shards int) []sharding.Member {
	var ms []sharding.Member
	for i := range n {
		ms = append(ms, sharding.Member{ID: fmt.Sprintf("replica-%d", i), Shards: shards, Joined: int64(10 + i)})
	}
	return ms
}

// drawMembers draws up to eight members with different ids and one number of shards.
func drawMembers(t *rapid.T, shards int) []sharding.Member {
	ids := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,6}-[a-z0-9]{5}`), 1, 8, rapid.ID).Draw(t, "ids")
	var ms []sharding.Member
	for i, id := range ids {
		ms = append(ms, sharding.Member{ID: id, Shards: shards, Joined: int64(i + 1)})
	}
	return ms
}

func TestOwner_NoParticipantsNoOwner(t *testing.T) {
	if got := sharding.Owner(0, nil); got != "" {
		t.Errorf("owner among no members = %q", got)
	}
	if got := sharding.Owner(0, []sharding.Member{{ID: "gateway", Shards: 0, Joined: 1}}); got != "" {
		t.Errorf("owner among members without shards = %q", got)
	}
}

// The hash is part of the protocol between replicas of different versions. It must not change.
func TestOwner_IsStableAcrossVersions(t *testing.T) {
	got := ""
	for shard := range 16 {
		got += sharding.Owner(shard, members(3, 16))[len("replica-"):]
	}
	if want := "0011121020210202"; got != want {
		t.Errorf("owners of 16 shards among 3 members = %s, want %s", got, want)
	}
}

func TestOwner_DoesNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := drawMembers(t, 16)
		shuffled := rapid.Permutation(ms).Draw(t, "shuffled")
		for shard := range 16 {
			if a, b := sharding.Owner(shard, ms), sharding.Owner(shard, shuffled); a != b {
				t.Fatalf("shard %d belongs to %q or %q, by order", shard, a, b)
			}
		}
	})
}

func TestOwner_LeavingMemberMovesOnlyItsShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := drawMembers(t, 16)
		gone := rapid.IntRange(0, len(ms)-1).Draw(t, "gone")
		rest := append(append([]sharding.Member{}, ms[:gone]...), ms[gone+1:]...)
		for shard := range 16 {
			before, after := sharding.Owner(shard, ms), sharding.Owner(shard, rest)
			if before != ms[gone].ID && before != after {
				t.Fatalf("shard %d moved from %q to %q because %q left", shard, before, after, ms[gone].ID)
			}
		}
	})
}

func TestOwner_SharesAreFair(t *testing.T) {
	const shards, replicas = 4096, 8
	count := map[string]int{}
	for shard := range shards {
		count[sharding.Owner(shard, members(replicas, shards))]++
	}
	for id, n := range count {
		if fair := shards / replicas; n < fair*8/10 || n > fair*12/10 {
			t.Errorf("%s owns %d of %d shards, want within 20 %% of %d", id, n, shards, fair)
		}
	}
	if len(count) != replicas {
		t.Errorf("%d of %d replicas own a shard", len(count), replicas)
	}
}

func TestAnchor_JoinedFirst(t *testing.T) {
	for name, test := range map[string]struct {
		members []sharding.Member
		want    string
	}{
		"no member":                 {members: nil, want: ""},
		"the earliest":              {members: []sharding.Member{{ID: "b", Shards: 1, Joined: 9}, {ID: "a", Shards: 1, Joined: 7}}, want: "a"},
		"by id when equal":          {members: []sharding.Member{{ID: "b", Shards: 1, Joined: 7}, {ID: "a", Shards: 1, Joined: 7}}, want: "a"},
		"without shards is ignored": {members: []sharding.Member{{ID: "a", Shards: 0, Joined: 1}, {ID: "b", Shards: 1, Joined: 7}}, want: "b"},
		"negative number of shards": {members: []sharding.Member{{ID: "a", Shards: -3, Joined: 1}}, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got, _ := sharding.Anchor(test.members); got.ID != test.want {
				t.Errorf("anchor = %q, want %q", got.ID, test.want)
			}
		})
	}
}

func BenchmarkPlan(b *testing.B) {
	s := sharding.Input{Self: "replica-0", Members: members(5, 64), Shards: make([]sharding.Shard, 64)}
	for b.Loop() {
		sharding.Plan(s)
	}
}

func TestOwner_LeavingMemberOwnsNothingButItsShardCountCounts(t *testing.T) {
	leaving := members(2, 16)
	leaving[0].Leaving = true // the anchor
	for shard := range 16 {
		if got := sharding.Owner(shard, leaving); got != leaving[1].ID {
			t.Errorf("shard %d goes to %q, want the member that stays", shard, got)
		}
	}
	leaving[1].Shards = 8
	if got := sharding.Owner(0, leaving); got != "" {
		t.Errorf("shard 0 goes to %q, whose number of shards differs from the leaving anchor's", got)
	}
}
