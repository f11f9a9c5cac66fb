package slicecontroller_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// A write that is stored, shown by the watch and then answered with an error
// leaves a slice that the cache does not have. A pod that is again as it was
// before must not make it look as if nothing were to be done.
func TestRun_AWriteThatWasStoredWithoutAnAnswerIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		api.refuseWith(func(change pack.Change) error {
			api.refuse = nil
			api.store(change.Slice)
			return errBusy
		})
		e.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		settle(10 * time.Millisecond)
		if got := describe(api.only(t)); got != "10.1.0.1 zone-a, 10.1.0.2 ready zone-a" {
			t.Fatalf("the write was not stored: %s", got)
		}
		e.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
		settle(10 * time.Second)
		if got := describe(api.only(t)); got != "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a" {
			t.Errorf("slice holds %q in the end", got)
		}
	})
}

// Nor must a panic on the way back.
func TestRun_AWriteThatWasStoredBeforeAPanicIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		api.loseWith(func(pack.Change) error {
			api.lose = nil
			go e.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
			panic("on the way back")
		})
		e.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		settle(10 * time.Second)
		if got := describe(api.only(t)); got != "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a" {
			t.Errorf("slice holds %q in the end", got)
		}
	})
}

// What the watch shows while a write is under way is left to the answer. When the
// term ends before there is one, a replica that does not get the shard again must
// not go on showing what was there before, also if it cannot read at once.
func TestHold_WhatAWriteCutOffHasStoredIsShownAfterTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads *deafReader
		e, api := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
			reads = &deafReader{Reader: deps.Reader}
			deps.Reader = reads
		})
		held := lead(t, e)
		fillShop(e, "web", 2)
		settle(time.Second)
		reads.refuse = 2
		api.loseWith(func(pack.Change) error {
			go func() {
				time.Sleep(700 * time.Microsecond) // after the event, and before the answer
				held.end()
			}()
			return context.Canceled
		})
		e.PutPod(slicetest.Pod("web-0", "10.1.0.200"))
		settle(10 * time.Second)
		state, _ := e.State(key("web"))
		if len(state.Slices) != 1 || state.Slices[0].ResourceVersion != api.only(t).ResourceVersion {
			t.Errorf("shown are %v, there is %v", state.Slices, api.only(t))
		}
		if reads.refuse != 0 {
			t.Errorf("%d reads were to be refused still", reads.refuse)
		}
	})
}

// Somebody else's edit right after a write of ours is read past the watch, which
// does not show it again; while it cannot be read it must not be forgotten.
func TestRun_AnEditThatCannotBeReadAtOnceIsReadLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads *deafReader
		unread := 0
		e, api := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
			reads = &deafReader{Reader: deps.Reader}
			deps.Reader = reads
			deps.Passed = func(pass slicecontroller.Pass) {
				if errors.Is(pass.Err, slicecontroller.ErrUnread) {
					unread++
				}
			}
		})
		lead(t, e)
		fillShop(e, "web", 2)
		settle(time.Second)
		name, want := api.only(t).Name, len(api.only(t).Endpoints)
		reads.refuse = 3
		api.refuseWith(func(pack.Change) error {
			api.refuse = nil
			go func() {
				time.Sleep(100 * time.Microsecond) // after the write, and before its answer
				api.edit(name, func(slice *discoveryv1.EndpointSlice) { slice.Endpoints = slice.Endpoints[:1] })
			}()
			return nil
		})
		e.PutPod(slicetest.Pod("web-9", "10.1.0.99"))
		settle(20 * time.Second)
		if unread == 0 {
			t.Error("no pass said that it failed because a slice could not be read")
		}
		if got := len(api.only(t).Endpoints); got != want+1 || reads.refuse != 0 {
			t.Errorf("%d endpoints in the end, want %d; %d reads were to be refused still", got, want+1, reads.refuse)
		}
	})
}

// A slice that is written and deleted while the watch is interrupted is never
// shown, neither that it came nor that it went: the next list has to tell.
func TestSlicesListed_WhatAWatchNeverShowedIsNoticedToBeGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		known := webSlice(t, e)
		there := map[slicecontroller.Key]struct{}{key(known.Name): {}}
		e.SlicesListed(there, known.ResourceVersion)
		settle(time.Second)
		if got := api.took(); got != 0 {
			t.Errorf("%d writes after a list that has everything", got)
		}
		e.SlicesListed(nil, "0")
		settle(time.Second)
		if got := api.took(); got != 0 {
			t.Errorf("%d writes after a list that is older than the slice", got)
		}
		api.mu.Lock()
		delete(api.slices, known.Name) // nobody is told
		api.version++
		api.mu.Unlock()
		e.SlicesListed(nil, "1000")
		settle(time.Second)
		if got := describe(api.only(t)); got != "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a" {
			t.Errorf("slice holds %q", got)
		}
	})
}

// deafReader refuses some reads.
type deafReader struct {
	slicecontroller.Reader
	refuse int
}

func (r *deafReader) Get(ctx context.Context, slice slicecontroller.Key) (*discoveryv1.EndpointSlice, error) {
	if r.refuse > 0 {
		r.refuse--
		return nil, errors.New("no answer")
	}
	return r.Reader.Get(ctx, slice)
}
