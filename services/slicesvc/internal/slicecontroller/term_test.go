package slicecontroller_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestRun_WritesOnlyDuringATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, held := shop(t)
		held.end()
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		e.PutService(slicetest.Service("new"))
		settle(time.Minute)
		if got := api.took(); got != 0 {
			t.Errorf("%d writes without a term, want none", got)
		}
		if got := e.QueueLength(); got != 0 {
			t.Errorf("queue holds %d without a term, want none", got)
		}
		preview, _ := e.Preview(key("web"))
		if len(preview.Plan.Changes) != 1 || preview.Plan.Changes[0].Added != 1 {
			t.Errorf("a standby plans %+v, want one endpoint added", preview.Plan)
		}
		lead(t, e)
		settle(100 * time.Millisecond)
		if got := api.took(); got != 2 {
			t.Errorf("%d writes in the next term, want 2", got)
		}
	})
}

func TestRun_EndOfTermCutsAPassShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, held := shop(t)
		for i := range 20 {
			e.PutService(slicetest.Service(fmt.Sprintf("svc-%d", i)))
		}
		time.Sleep(3 * time.Millisecond)
		held.end()
		done := api.took()
		if done == 0 || done >= 20 {
			t.Errorf("%d of 20 Services were written when the term ended, want some", done)
		}
		for _, key := range e.Keys("") {
			if state, _ := e.State(key); state.History.Failures > 0 {
				t.Errorf("the end of the term counts as a failure of %s: %+v", key, state.History)
			}
		}
		settle(time.Minute)
		if got := api.took(); got != 0 {
			t.Errorf("%d writes after the term ended", got)
		}
		lead(t, e)
		settle(time.Minute)
		if got := done + api.took(); got != 20 {
			t.Errorf("%d writes over both terms, want 20", got)
		}
	})
}

// A term that begins while the list of another one takes its time waits for that
// list to end, but not longer than it lasts: who comes next waits for its end.
func TestHold_EndsThoughAnotherTermIsListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := &slowReader{answer: make(chan struct{})}
		e, _ := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
			reads.Reader = deps.Reader
			deps.Reader = reads
		})
		first := hold(t, e, 0)
		settle(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { returned <- e.Hold(ctx, 1, func(error) {}) }()
		settle(time.Second)
		cancel()
		settle(time.Second)
		select {
		case err := <-returned:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the second term waits for the list of the first beyond its end")
		}
		close(reads.answer)
		settle(time.Second)
		second := hold(t, e, 2)
		settle(time.Second)
		if reads.lists != 2 {
			t.Errorf("%d lists, want those of the first and the third term", reads.lists)
		}
		first.end()
		second.end()
	})
}

// slowReader lists when it is told to.
type slowReader struct {
	slicecontroller.Reader
	answer chan struct{}
	lists  int
}

func (r *slowReader) List(ctx context.Context) ([]metav1.ObjectMeta, string, error) {
	r.lists++
	<-r.answer
	return r.Reader.List(ctx)
}
