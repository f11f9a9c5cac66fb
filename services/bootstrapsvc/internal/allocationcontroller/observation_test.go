package allocationcontroller

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/errorclass"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const leakedPort = "findings/leaked.node-ports.30005"

// wantPendingUntil wants a leak to stay pending for minutes, and to open soon after the call of
// resume.
func wantPendingUntil(t *testing.T, r *leadership, resume func()) {
	t.Helper()
	time.Sleep(5 * time.Minute)
	if state := r.current(t)[leakedPort]; state != allocation.StatePending {
		t.Errorf("the leak is %d, want it pending", state)
	}
	resume()
	time.Sleep(2 * time.Minute)
	if state := r.current(t)[leakedPort]; state == allocation.StatePending {
		t.Error("the leak is still pending")
	}
}

// A pass with a write conflict does not count: the other writer may be about to use what looks
// unused.
func TestController_PassWithAConflictIsNoObservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("user", "None", 30001)
		w.putBits(30005)
		w.onWrite(func(write string, after bool) error {
			if strings.HasPrefix(write, "swap") && !after {
				return rangestore.ErrConflict
			}
			return nil
		})
		cfg := w.config()
		cfg.AutoRepair = true
		r := w.lead(t, cfg)
		defer r.end()
		wantPendingUntil(t, r, func() { w.onWrite(nil) })
	})
}

func TestController_PassWithABrokenWatchIsNoObservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		watcher := w.watching()
		watcher.OnError(KindServices, errorclass.ErrUnavailable)
		wantPendingUntil(t, r, func() { watcher.OnError(KindServices, nil) })
	})
}

func TestController_SkipsTheStepsOfAFindingAfterAFailedStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		w.onWrite(func(write string, after bool) error {
			if write == "delete 10.0.0.3" && !after {
				return errors.New("forbidden")
			}
			return nil
		})
		plan, err := r.PlanRepair([]string{"findings/wrong-reference.ip-addresses.10.0.0.3"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		repair, err := r.ApplyRepair(r.ctx, plan.Token, "admin")
		if err != nil || len(repair.Results) != 2 || repair.Ended.IsZero() {
			t.Fatalf("repair %+v, %v", repair, err)
		}
		for i, why := range []string{"forbidden", "an earlier step of the same finding was not made"} {
			if got := repair.Results[i]; got.State != repairstore.StepFailed || !strings.Contains(got.Error, why) {
				t.Errorf("step %d: %+v, want it failed: %s", i+1, got, why)
			}
		}
	})
}
