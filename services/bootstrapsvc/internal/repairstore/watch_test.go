package repairstore

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// follower has the repairs that a watch reported.
type follower struct {
	mu      sync.Mutex // guards the fields below
	states  map[string]State
	deleted map[string]State
	lists   int
}

func (f *follower) OnList(repairs []Repair) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	f.states = map[string]State{}
	for _, repair := range repairs {
		f.states[repair.ID] = repair.State()
	}
}

func (f *follower) OnChange(changed, deleted []Repair) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, repair := range changed {
		f.states[repair.ID] = repair.State()
	}
	for _, repair := range deleted {
		delete(f.states, repair.ID)
		f.deleted[repair.ID] = repair.State()
	}
}

func (f *follower) OnError(error) {}

func (f *follower) want(t *testing.T, states, deleted map[string]State) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !maps.Equal(states, f.states) || !maps.Equal(deleted, f.deleted) {
			return fmt.Errorf("repairs %v, deleted %v, want %v and %v", f.states, f.deleted, states, deleted)
		}
		return nil
	})
}

func TestWatchRepairs_ReportsEveryRepairAndItsLastState(t *testing.T) {
	f := newFixture(t)
	if err := f.Begin(f.ctx, repair("first", at)); err != nil {
		t.Fatal(err)
	}
	f.put(t, "repairs/future/plan", `{"ID":{}}`)
	ctx, cancel := context.WithCancel(t.Context())
	handler, ended := &follower{deleted: map[string]State{}}, make(chan struct{})
	go func() {
		defer close(ended)
		f.WatchRepairs(ctx, handler)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	handler.want(t, map[string]State{"first": Running}, nil)
	if err := f.Begin(f.ctx, repair("second", at)); err != nil {
		t.Fatal(err)
	}
	done := StepResult{State: StepDone, Time: at}
	if err := f.Record(f.ctx, "first", map[int]StepResult{0: done, 1: done}, Progress{Attempts: 1}); err != nil {
		t.Fatal(err)
	}
	if err := f.End(f.ctx, "first", at); err != nil {
		t.Fatal(err)
	}
	handler.want(t, map[string]State{"first": Succeeded, "second": Running}, nil)
	if err := f.DeleteRepairs(f.ctx, []string{"first"}); err != nil {
		t.Fatal(err)
	}
	handler.want(t, map[string]State{"second": Running}, map[string]State{"first": Succeeded})
	if handler.lists != 1 {
		t.Errorf("%d lists, want one", handler.lists)
	}
}
