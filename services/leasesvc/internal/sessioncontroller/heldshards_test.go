package sessioncontroller_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

func TestShard_DrainWaitsForWritesAndPreventsNewOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := sessioncontroller.NewHeldShard(t.Context(), 3, 7)
		_, end, ok := held.BeginWrite()
		if !ok {
			t.Fatal("BeginWrite failed for a held shard")
		}
		drained := make(chan struct{})
		go func() {
			held.Drain()
			close(drained)
		}()
		synctest.Wait()
		select {
		case <-drained:
			t.Fatal("Drain returned before the write did")
		default:
		}
		if _, _, ok := held.BeginWrite(); ok {
			t.Error("a write began during Drain")
		}
		end()
		<-drained
		held.Drain()
	})
}

func TestShard_NoWriteBeginsAfterTheTerm(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	held := sessioncontroller.NewHeldShard(ctx, 3, 7)
	cancel()
	if _, _, ok := held.BeginWrite(); ok {
		t.Error("a write began after the end of the term")
	}
}

func TestSet_HasHeldShardsAndReportsChanges(t *testing.T) {
	t.Parallel()
	set := sessioncontroller.NewHeldShards()
	first, second := sessioncontroller.NewHeldShard(t.Context(), 5, 1), sessioncontroller.NewHeldShard(t.Context(), 2, 1)
	changed := set.Changed()
	set.Add(first)
	<-changed
	set.Add(second)
	if diff := cmp.Diff([]int{2, 5}, set.IDs()); diff != "" {
		t.Errorf("shards differ (-want +got):\n%s", diff)
	}
	next := sessioncontroller.NewHeldShard(t.Context(), 5, 2)
	set.Add(next)
	changed = set.Changed()
	set.Remove(first) // replaced by next
	select {
	case <-changed:
		t.Error("Changed was closed without a change")
	default:
	}
	if held, ok := set.Get(5); !ok || held != next {
		t.Errorf("Held(5) = %v, %t, want the shard that was added last", held, ok)
	}
	set.Remove(next)
	<-changed
	if _, ok := set.Get(5); ok {
		t.Error("a removed shard is still held")
	}
}
