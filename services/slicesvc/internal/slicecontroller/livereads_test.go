package slicecontroller_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// A write is stored, its event comes, and then its answer is an error: the cache has an old slice.
// The sync after the Pod changes back must read the slice.
func TestRun_StoredWriteWithErrorIsRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		cluster.refuseWith(func(change pack.Change) error {
			cluster.refuse = nil
			cluster.store(change.Slice)
			return errBusy
		})
		controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		advance(10 * time.Millisecond)
		if got := describe(cluster.onlySlice(t)); got != "10.1.0.1 zone-a, 10.1.0.2 ready zone-a" {
			t.Fatalf("the write was not stored: %s", got)
		}
		controller.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
		advance(10 * time.Second)
		if got := describe(cluster.onlySlice(t)); got != "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a" {
			t.Errorf("slice has %q in the end", got)
		}
	})
}

func TestRun_StoredWriteWithPanicIsRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		cluster.loseWith(func(pack.Change) error {
			cluster.lose = nil
			go controller.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
			panic("after the write")
		})
		controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		advance(10 * time.Second)
		if got := describe(cluster.onlySlice(t)); got != "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a" {
			t.Errorf("slice has %q in the end", got)
		}
	})
}

// An event during a write is left to the answer. If the term ends before the answer, the slice is
// read after the term, even if the first reads fail.
func TestRunShard_InterruptedWriteIsReadAfterTheTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reader *failingReader
		controller, cluster := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
			reader = &failingReader{Reader: deps.Reader}
			deps.Reader = reader
		})
		held := holdAllShards(t, controller)
		putService(controller, "web", 2)
		advance(time.Second)
		reader.failures = 2
		cluster.loseWith(func(pack.Change) error {
			go func() {
				time.Sleep(700 * time.Microsecond) // after the event, and before the answer
				held.end()
			}()
			return context.Canceled
		})
		controller.PutPod(slicetest.Pod("web-0", "10.1.0.200"))
		advance(10 * time.Second)
		state, _ := controller.State(key("web"))
		if len(state.Slices) != 1 || state.Slices[0].ResourceVersion != cluster.onlySlice(t).ResourceVersion {
			t.Errorf("state has %v, the cluster %v", state.Slices, cluster.onlySlice(t))
		}
		if reader.failures != 0 {
			t.Errorf("%d failures are left", reader.failures)
		}
	})
}

// Another writer's change right after our write is read, because no event shows it again. A failed
// read must be retried.
func TestRun_FailedReadIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reader *failingReader
		events := &eventSink{}
		controller, cluster := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
			reader = &failingReader{Reader: deps.Reader}
			deps.Reader = reader
			deps.Events = events
		})
		holdAllShards(t, controller)
		putService(controller, "web", 2)
		advance(time.Second)
		name, want := cluster.onlySlice(t).Name, len(cluster.onlySlice(t).Endpoints)
		reader.failures = 3
		cluster.refuseWith(func(pack.Change) error {
			cluster.refuse = nil
			go func() {
				time.Sleep(100 * time.Microsecond) // after the write, and before its answer
				cluster.edit(name, func(slice *discoveryv1.EndpointSlice) { slice.Endpoints = slice.Endpoints[:1] })
			}()
			return nil
		})
		controller.PutPod(slicetest.Pod("web-9", "10.1.0.99"))
		advance(20 * time.Second)
		if len(events.with("FailedToListEndpointSlices")) == 0 {
			t.Error("no Event says that a slice could not be read")
		}
		if got := len(cluster.onlySlice(t).Endpoints); got != want+1 || reader.failures != 0 {
			t.Errorf("%d endpoints in the end, want %d; %d failures are left", got, want+1, reader.failures)
		}
	})
}

// A slice that is written and deleted while the watch is interrupted has no event at all. The next
// list shows that it is gone.
func TestSlicesListed_RemovesSlicesWithoutADeletionEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		known := webSlice(t, controller)
		listed := map[slicecontroller.Key]struct{}{key(known.Name): {}}
		controller.SlicesListed(listed, known.ResourceVersion)
		advance(time.Second)
		if got := cluster.takeWrites(); got != 0 {
			t.Errorf("%d writes after a list with the slice", got)
		}
		controller.SlicesListed(nil, "0")
		advance(time.Second)
		if got := cluster.takeWrites(); got != 0 {
			t.Errorf("%d writes after a list older than the slice", got)
		}
		cluster.mu.Lock()
		delete(cluster.slices, known.Name) // without an event
		cluster.version++
		cluster.mu.Unlock()
		controller.SlicesListed(nil, "1000")
		advance(time.Second)
		if got := describe(cluster.onlySlice(t)); got != "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a" {
			t.Errorf("slice has %q", got)
		}
	})
}

// failingReader fails some calls of Get.
type failingReader struct {
	slicecontroller.Reader
	failures int
}

func (r *failingReader) Get(ctx context.Context, slice slicecontroller.Key) (*discoveryv1.EndpointSlice, error) {
	if r.failures > 0 {
		r.failures--
		return nil, errors.New("no answer")
	}
	return r.Reader.Get(ctx, slice)
}

// A term begins with a sync of each Service. One whose endpoint was taken away before the cache had
// caught up is the first.
func TestRunShard_AnUrgentChangeWhileCatchingUpIsFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		cluster.setLatency(100 * time.Millisecond)
		for i := range 60 {
			putService(controller, fmt.Sprintf("app-%02d", i), 1)
		}
		putService(controller, "web", 2)
		holdAllShards(t, controller)
		synctest.Wait() // the shards list slices
		controller.DeletePod(slicetest.Pod("web-0", slicetest.Address(0), labelledApp("web")))
		advance(250 * time.Millisecond)
		if state, _ := controller.State(key("web")); len(state.Slices) == 0 {
			t.Errorf("web is not synced after %d writes of other Services", cluster.takeWrites())
		}
	})
}
