package shard_test

import (
	"fmt"
	"testing"

	"github.com/trivet-dev/trivet/internal/shard"
)

// The values were worked out by an independent XXH64. They must hold for ever: see the package.
func TestOf_IsAConstantOfTheWire(t *testing.T) {
	for _, c := range []struct {
		scope, name  string
		shards, want int
	}{
		{scope: "default", name: "kubernetes", shards: 64, want: 7},
		{scope: "shop", name: "web", shards: 1, want: 0},
		{scope: "shop", name: "web", shards: 64, want: 27},
		{scope: "shop", name: "web", shards: 4096, want: 1819},
		{scope: "a", name: "b", shards: 3, want: 1},
	} {
		if got := shard.Of(c.scope, c.name, c.shards); got != c.want {
			t.Errorf("%s/%s is in shard %d of %d, want %d", c.scope, c.name, got, c.shards, c.want)
		}
	}
}

func TestOf_SpreadsAlikeNames(t *testing.T) {
	const shards, holders = 64, 6400
	var fill [shards]int
	for i := range holders {
		fill[shard.Of("node", fmt.Sprintf("node-%d", i), shards)]++
	}
	for number, got := range fill {
		// Six standard deviations of a fair throw around a hundred.
		if got < 40 || got > 160 {
			t.Errorf("shard %d has %d of %d holders, want about %d", number, got, holders, holders/shards)
		}
	}
}

func TestOf_PartsThatRunTogetherDiffer(t *testing.T) {
	const shards = 1 << 20
	if a, b := shard.Of("ab", "c", shards), shard.Of("a", "bc", shards); a == b {
		t.Errorf("ab/c and a/bc are both in shard %d of %d", a, shards)
	}
}

func TestOf_MakesNoGarbage(t *testing.T) {
	if got := testing.AllocsPerRun(100, func() { shard.Of("node", "node-1", 64) }); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}
