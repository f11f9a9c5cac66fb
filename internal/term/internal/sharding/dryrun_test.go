package sharding

import (
	"strings"
	"testing"
)

// A loop must not write in one replica while another one, which only compares, holds the shard.
func TestPlan_ReplicasThatDifferInDryRunHoldNoShardsSideBySide(t *testing.T) {
	members := []Member{
		{ID: "compares", Shards: 4, DryRun: "endpointslices", Joined: 1},
		{ID: "writes", Shards: 4, Joined: 2},
	}
	for shard := range 4 {
		if owner := Owner(shard, members); owner != "compares" {
			t.Errorf("shard %d belongs to %q, want the oldest replica alone", shard, owner)
		}
	}
	in := Input{Self: "writes", Members: members, Shards: make([]Shard, 4)}
	if why := blocked(in); !strings.Contains(why, `"compares", which joined first, has --dry-run="endpointslices" and this one ""`) {
		t.Errorf("the replica that differs is blocked by %q", why)
	}
	in.Self = "compares"
	if why := blocked(in); why != "" {
		t.Errorf("the oldest replica is blocked by %q", why)
	}
	members[0].Joined = 3
	in.Self, in.Leaders = "writes", []string{"compares"}
	if why := blocked(in); !strings.Contains(why, "still holds a shard") {
		t.Errorf("a replica is blocked by %q while one that differs still holds a shard", why)
	}
}
