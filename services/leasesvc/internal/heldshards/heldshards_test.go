package heldshards_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
)

func TestTenure_FinishWaitsForWritesAndLetsNoneBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := heldshards.New(t.Context(), 3, 7)
		_, end, ok := held.BeginWrite()
		if !ok {
			t.Fatal("a held tenure lets no write begin")
		}
		finished := make(chan struct{})
		go func() {
			held.Drain()
			close(finished)
		}()
		synctest.Wait()
		select {
		case <-finished:
			t.Fatal("Finish returned before the write did")
		default:
		}
		if _, _, ok := held.BeginWrite(); ok {
			t.Error("a write began while the tenure finished")
		}
		end()
		<-finished
		held.Drain()
	})
}

func TestTenure_NothingBeginsAfterTheTerm(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	held := heldshards.New(ctx, 3, 7)
	cancel()
	if _, _, ok := held.BeginWrite(); ok {
		t.Error("a write began after the end of the term")
	}
}

func TestBoard_ShowsWhatIsHeldAndTellsChanges(t *testing.T) {
	board := heldshards.NewSet()
	first, second := heldshards.New(t.Context(), 5, 1), heldshards.New(t.Context(), 2, 1)
	changed := board.Changed()
	board.Add(first)
	<-changed
	board.Add(second)
	if diff := cmp.Diff([]int{2, 5}, board.IDs()); diff != "" {
		t.Errorf("shards differ (-want +got):\n%s", diff)
	}
	next := heldshards.New(t.Context(), 5, 2)
	board.Add(next)
	changed = board.Changed()
	board.Remove(first) // it is not up any more
	select {
	case <-changed:
		t.Error("a change was told where there was none")
	default:
	}
	if held, ok := board.Get(5); !ok || held != next {
		t.Errorf("Held(5) = %v, %t, want the tenure that was added last", held, ok)
	}
	board.Remove(next)
	<-changed
	if _, ok := board.Get(5); ok {
		t.Error("a removed tenure is still held")
	}
}
