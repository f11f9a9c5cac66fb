package merge_test

import (
	"runtime"
	"testing"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
)

// A replica must not make memory grow with numbers of shards that do not exist.
func TestView_BookmarksOfUnknownShards(t *testing.T) {
	f := newFixture(t, merge.Partitioned, "a")
	f.Begin("a", false)
	f.mark("a", 1, true)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range int32(200) {
		shards := make([]int32, 10_000)
		for j := range shards {
			shards[j] = 10_000*(i+1) + int32(j)
		}
		f.mark("a", 1, false, shards...)
	}
	f.mark("a", 1, false)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 10<<20 {
		t.Errorf("200 bookmarks left %d MiB", grown>>20)
	}
	runtime.KeepAlive(f)
}
