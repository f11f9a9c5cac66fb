package allocationcontroller

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const leakName = "findings/leaked.node-ports.30005"

// wantRipening wants a leak to stay pending for minutes, and to be open soon after what held it up has ended.
func wantRipening(t *testing.T, r *reign, held func()) {
	t.Helper()
	time.Sleep(5 * time.Minute)
	if state := r.standing(t)[leakName]; state != allocation.Pending {
		t.Errorf("the leak is %d, want it pending", state)
	}
	held()
	time.Sleep(2 * time.Minute)
	if state := r.standing(t)[leakName]; state == allocation.Pending {
		t.Error("the leak is still pending")
	}
}

// A pass in which somebody else was faster says nothing of what nobody uses: that may be what the other one is about to use.
func TestAuditor_APassWithAConflictIsNoSighting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.service("user", "None", 30001)
		w.bits(30005)
		w.interfere(func(write string, after bool) error {
			if strings.HasPrefix(write, "swap") && !after {
				return rangestore.ErrConflict
			}
			return nil
		})
		cfg := w.config()
		cfg.AutoRepair = true
		r := w.lead(t, cfg)
		defer r.end()
		wantRipening(t, r, func() { w.interfere(nil) })
	})
}

// Neither does one while a watch is broken.
func TestAuditor_APassWithoutAWatchIsNoSighting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.bits(30005)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(aWhile)
		watcher := w.watching()
		watcher.Broken(KindServices, ErrUnavailable)
		wantRipening(t, r, func() { watcher.Broken(KindServices, nil) })
	})
}

// What was to be replaced and could not be taken away is not written a second time.
func TestAuditor_AfterAStepThatFailedTheRestOfItsFindingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := damaged(t)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(aWhile)
		w.interfere(func(write string, after bool) error {
			if write == "delete 10.0.0.3" && !after {
				return errors.New("forbidden")
			}
			return nil
		})
		plan, err := r.PlanRepair([]string{"findings/wrong-reference.ip-addresses.10.0.0.3"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		repair, err := r.Apply(r.ctx, plan.Token, "somebody")
		if err != nil || len(repair.Outcomes) != 2 || repair.Ended.IsZero() {
			t.Fatalf("repair %+v, %v", repair, err)
		}
		for i, why := range []string{"forbidden", "an earlier step of the same finding was not made"} {
			if got := repair.Outcomes[i]; got.State != repairstore.Failed || !strings.Contains(got.Error, why) {
				t.Errorf("step %d: %+v, want it failed: %s", i+1, got, why)
			}
		}
	})
}
