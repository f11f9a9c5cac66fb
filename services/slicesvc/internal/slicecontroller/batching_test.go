package slicecontroller_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestRun_BatcherDelaysChangesOfPods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		batcher := &fixedBatcher{period: time.Second}
		controller, cluster := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) { deps.Batcher = batcher })
		holdAllShards(t, controller)
		putService(controller, "web", 10)
		advance(2 * time.Second)
		cluster.takeWrites()
		for i := range 10 {
			controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i), slicetest.Unready, labelledApp("web")))
			advance(50 * time.Millisecond)
		}
		if got := cluster.takeWrites(); got != 0 {
			t.Errorf("%d writes within the window", got)
		}
		advance(time.Second)
		if got := cluster.takeWrites(); got != 1 {
			t.Errorf("%d writes after it, want 1", got)
		}
		if batcher.urgency != index.Urgent || batcher.writes == 0 {
			t.Errorf("the Batcher got urgency %d and %d writes", batcher.urgency, batcher.writes)
		}
	})
}

// A change during a sync waits as long as any other change.
func TestRun_BatcherDelaysChangesDuringASync(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
			deps.Batcher = &fixedBatcher{period: time.Second}
		})
		holdAllShards(t, controller)
		putService(controller, "web", 10)
		advance(2 * time.Second)
		cluster.takeWrites()
		for i := range 10 {
			// The sync of the change before begins after a second and takes two milliseconds.
			controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i), slicetest.Unready, labelledApp("web")))
			advance(time.Second + time.Millisecond)
		}
		advance(2 * time.Second)
		if got := cluster.takeWrites(); got != 10 {
			t.Fatalf("%d writes, want 10", got)
		}
		controller.PutPod(slicetest.Pod("web-0", slicetest.Address(0), labelledApp("web")))
		advance(time.Second + time.Millisecond) // its sync is running
		for i := 1; i < 10; i++ {
			controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i), labelledApp("web")))
			advance(50 * time.Millisecond)
		}
		if got := cluster.takeWrites(); got != 1 {
			t.Errorf("%d writes within the second window, want only the one of the first change", got)
		}
		advance(time.Second)
		if got := cluster.takeWrites(); got != 1 {
			t.Errorf("%d writes after it, want 1", got)
		}
	})
}

// fixedBatcher is a Batcher with a fixed period.
type fixedBatcher struct {
	period  time.Duration
	urgency index.Urgency
	writes  int
}

func (b *fixedBatcher) Delay(now time.Time, change slicecontroller.BatchedChange) time.Duration {
	b.urgency = change.Urgency
	return change.Since.Add(b.period).Sub(now)
}

func (b *fixedBatcher) Wrote(time.Time, time.Duration, error) { b.writes++ }
