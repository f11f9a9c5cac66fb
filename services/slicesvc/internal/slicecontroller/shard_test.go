package slicecontroller_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/shard"
)

// The values were worked out by an independent XXH64.
// They must hold for ever: see the package.
func TestOf_IsAConstantOfTheWire(t *testing.T) {
	for _, c := range []struct {
		namespace, name string
		shards, want    int
	}{
		{namespace: "default", name: "kubernetes", shards: 64, want: 7},
		{namespace: "shop", name: "web", shards: 1, want: 0},
		{namespace: "shop", name: "web", shards: 64, want: 27},
		{namespace: "shop", name: "web", shards: 4096, want: 1819},
		{namespace: "kube-system", name: "kube-dns", shards: 64, want: 40},
		{namespace: "a", name: "b", shards: 3, want: 1},
		{namespace: "team-with-a-rather-long-name-in-production", name: "service-with-a-name-that-is-long-too", shards: 64, want: 63},
	} {
		key := types.NamespacedName{Namespace: c.namespace, Name: c.name}
		if got := shard.Of(key.Namespace, key.Name, c.shards); got != c.want {
			t.Errorf("%s is in shard %d of %d, want %d", key, got, c.shards, c.want)
		}
	}
}

func TestOf_SpreadsAlikeNames(t *testing.T) {
	const shards, services = 64, 6400
	var fill [shards]int
	for i := range services {
		fill[shard.Of("shop", fmt.Sprintf("web-%d", i), shards)]++
	}
	for number, got := range fill {
		// Six standard deviations of a fair throw around a hundred.
		if got < 40 || got > 160 {
			t.Errorf("shard %d has %d of %d Services, want about %d", number, got, services, services/shards)
		}
	}
}

func TestOf_KeysThatRunTogetherDiffer(t *testing.T) {
	const shards = 1 << 20
	a := shard.Of("ab", "c", shards)
	b := shard.Of("a", "bc", shards)
	if a == b {
		t.Errorf("ab/c and a/bc are both in shard %d of %d", a, shards)
	}
}

func TestOf_MakesNoGarbage(t *testing.T) {
	key := types.NamespacedName{Namespace: "shop", Name: "web"}
	if got := testing.AllocsPerRun(100, func() { shard.Of(key.Namespace, key.Name, 64) }); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}
