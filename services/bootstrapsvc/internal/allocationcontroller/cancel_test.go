package allocationcontroller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

var errUnavailable = guarded.ErrUnavailable

// blockedRepair applies a plan of everything whose first address cannot be created.
func blockedRepair(t *testing.T, w *fakeCluster, r *leadership) (repairstore.Plan, repairstore.Repair) {
	t.Helper()
	w.onWrite(func(write string, after bool) error {
		if write == "create 10.0.0.1" && !after {
			return errUnavailable
		}
		return nil
	})
	plan := r.plan(t)
	repair, err := r.apply(plan)
	if err != nil || repair.State() != repairstore.Running {
		t.Fatalf("repair %+v, %v, want it running", repair, err)
	}
	return plan, repair
}

func TestCancel_EndsARepairForGood(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		plan, repair := blockedRepair(t, w, r)
		request := CancelRequest{ID: repair.ID, Caller: allocation.Caller{User: "operator"}}
		for name, wrong := range map[string]struct {
			request CancelRequest
			want    error
		}{
			"another repair": {request: CancelRequest{ID: "none"}, want: ErrRepairNotFound},
			"another etag":   {request: CancelRequest{ID: repair.ID, Etag: "other"}, want: ErrEtagMismatch},
		} {
			if _, err := r.Cancel(r.ctx, wrong.request); !errors.Is(err, wrong.want) {
				t.Errorf("%s: %v, want %v", name, err, wrong.want)
			}
		}
		checked := request
		checked.ValidateOnly = true
		if got, err := r.Cancel(r.ctx, checked); err != nil || got.State() != repairstore.Running || slices.Contains(w.writesDone(), "cancel") {
			t.Errorf("validated: %+v, %v", got, err)
		}
		request.Etag = w.repairs(t)[0].Etag()
		cancelled, err := r.Cancel(r.ctx, request)
		if err != nil || cancelled.State() != repairstore.Cancelled || cancelled.Cancelled.Caller.User != "operator" || cancelled.Ended.IsZero() {
			t.Fatalf("cancelled: %+v, %v", cancelled, err)
		}
		if again, err := r.Cancel(r.ctx, request); err != nil || again.Etag() != cancelled.Etag() {
			t.Errorf("cancelled twice: %+v, %v, want %+v", again, err, cancelled)
		}
		if again, err := r.apply(plan); err != nil || again.State() != repairstore.Cancelled {
			t.Errorf("applied after the cancellation: %+v, %v", again, err)
		}
		r.end()
		w.onWrite(nil)
		next := w.lead(t, w.config())
		defer next.end()
		time.Sleep(time.Minute)
		if slices.Contains(w.writesDone(), "create 10.0.0.1") || next.lastError() != nil {
			t.Errorf("the next leader wrote %v, %v, want the repair left alone", w.writesDone(), next.lastError())
		}
		repaired, err := next.apply(next.plan(t, missingAddress))
		if err != nil || repaired.State() != repairstore.Succeeded {
			t.Errorf("a new plan of the finding: %+v, %v", repaired, err)
		}
		if _, err := next.Cancel(next.ctx, CancelRequest{ID: repaired.ID}); !errors.Is(err, ErrRepairNotCancellable) {
			t.Errorf("cancel of an ended repair = %v, want %v", err, ErrRepairNotCancellable)
		}
	})
}

// The repair has more steps than there are workers, and each write takes some seconds. The repair
// stops before the steps that no worker has begun.
func TestCancel_StopsARunningRepairBeforeItsNextStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 2*maxWorkers + 1
		w := newFakeCluster(t)
		for i := range many {
			w.addAddress(fmt.Sprint("10.0.0.", 100+i), "deleted")
		}
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(70 * time.Second)
		plan := r.plan(t)
		w.onWrite(func(write string, after bool) error {
			if strings.HasPrefix(write, "delete") && !after {
				time.Sleep(5 * time.Second)
			}
			return nil
		})
		applied := make(chan repairstore.Repair, 1)
		go func() {
			repair, err := r.apply(plan)
			if err != nil {
				t.Errorf("apply = %v", err)
			}
			applied <- repair
		}()
		time.Sleep(time.Second)
		repair, err := r.Cancel(r.ctx, CancelRequest{ID: plan.ID, Caller: admin})
		if err != nil || repair.State() != repairstore.Cancelled {
			t.Fatalf("cancelled: %+v, %v", repair, err)
		}
		states := map[repairstore.StepState]int{}
		for _, result := range repair.Results {
			states[result.State]++
		}
		if states[repairstore.StepDone] != maxWorkers || states[repairstore.StepPending] != many-maxWorkers || len(repair.Progress.Steps) != maxWorkers {
			t.Errorf("steps are %v, tried %+v, want %d done and the others pending", states, repair.Progress, maxWorkers)
		}
		if got := <-applied; got.State() != repairstore.Cancelled {
			t.Errorf("the apply returned %+v", got)
		}
		time.Sleep(5 * time.Minute)
		deletes := slices.DeleteFunc(w.writesDone(), func(write string) bool { return !strings.HasPrefix(write, "delete") })
		if len(deletes) != maxWorkers {
			t.Errorf("wrote %v, want %d deletes", deletes, maxWorkers)
		}
	})
}

// A caller that goes away before the cancellation is stored does not stop the repair.
func TestCancel_CallerThatLeavesDoesNotStopTheRepair(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		_, repair := blockedRepair(t, w, r)
		end := r.cancelling.begin(repair.ID)
		w.onWrite(nil)
		time.Sleep(time.Minute)
		if got := w.repairs(t)[0]; got.State() != repairstore.Running {
			t.Errorf("repair %+v while a caller waits to cancel it, want it unchanged", got)
		}
		end()
		time.Sleep(time.Minute)
		if got := w.repairs(t)[0]; got.State() != repairstore.Succeeded {
			t.Errorf("repair %+v after the caller left, want it finished", got)
		}
	})
}

// The process crashes before or after each write of a cancellation. The repair then either runs or
// is cancelled, and the caller can cancel it again.
func TestCancel_NextLeaderAfterACrash(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
			_, repair := blockedRepair(t, w, r)
			refuseCreate := func(write string, isAfter bool) error {
				if write == "create 10.0.0.1" && !isAfter {
					return errUnavailable
				}
				return nil
			}
			w.onWrite(func(write string, isAfter bool) error {
				if write == "cancel" && isAfter == after {
					r.lose()
					return errCrash
				}
				return refuseCreate(write, isAfter)
			})
			if _, err := r.Cancel(r.ctx, CancelRequest{ID: repair.ID, Caller: admin}); err == nil {
				t.Error("cancelled by a process that crashed")
			}
			r.end()
			want := repairstore.Running
			if after {
				want = repairstore.Cancelled
			}
			if got := w.repairs(t)[0].State(); got != want {
				t.Errorf("crash after the write: %t: state is %d, want %d", after, got, want)
			}
			next := w.lead(t, w.config())
			defer next.end()
			time.Sleep(settleTime)
			w.onWrite(refuseCreate)
			if got, err := next.Cancel(next.ctx, CancelRequest{ID: repair.ID, Caller: admin}); err != nil || got.State() != repairstore.Cancelled {
				t.Errorf("crash after the write: %t: cancelled again: %+v, %v", after, got, err)
			}
			if slices.Contains(w.writesDone(), "create 10.0.0.1") {
				t.Error("a cancelled step was written")
			}
		})
	}
}
