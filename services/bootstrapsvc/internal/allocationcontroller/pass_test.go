package allocationcontroller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// On a busy machine, an event of a bitmap may arrive long before the events of Services. A deleted
// Service then looks like one that lost its port and its address. A Service that has really lost
// them is found at the same time.
func TestController_WatchesOutOfStepOpenNoFinding(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("gone", "10.0.0.1", 30001)
		w.addAddress("10.0.0.1", "gone")
		w.addService("affected", "10.0.0.2", 30002)
		w.addAddress("10.0.0.2", "affected")
		w.putBits(30001, 30002)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)

		w.locked(func() { w.stale[KindServices] = true })
		w.deleteService("gone")
		w.deleteAddress("10.0.0.1")
		w.deleteAddress("10.0.0.2")
		w.putBits()
		want := map[string]allocation.FindingState{
			"findings/not-allocated.ip-addresses.10.0.0.1": allocation.StatePending,
			"findings/not-allocated.ip-addresses.10.0.0.2": allocation.StateOpen,
			"findings/not-allocated.node-ports.30001":      allocation.StatePending,
			"findings/not-allocated.node-ports.30002":      allocation.StateOpen,
		}
		for range 20 {
			time.Sleep(settleTime)
			if diff := cmp.Diff(want, r.current(t)); diff != "" {
				t.Fatalf("findings differ (-want +got):\n%s", diff)
			}
		}
		if opened := r.reporter.openedNames(); len(opened) != 2 {
			t.Errorf("opened %v, want the two of the service that exists", opened)
		}

		w.locked(func() { w.stale[KindServices] = false })
		w.relist(KindServices)
		w.deleteService("gone") // the delayed event
		time.Sleep(settleTime)
		snapshot, err := r.Snapshot()
		if err != nil || len(snapshot.Current) != 2 || len(snapshot.Ended) != 0 {
			t.Errorf("snapshot %+v, %v, want two findings and nothing of the others", snapshot, err)
		}
	})
}

func TestController_OpensManyFindings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 507
		w := newFakeCluster(t)
		for i := range many {
			w.addService(fmt.Sprint("s", i), "None", int32(30000+i))
		}
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(10 * time.Second)
		open := 0
		for _, state := range r.current(t) {
			if state == allocation.StateOpen {
				open++
			}
		}
		if open != many {
			t.Errorf("%d findings are open, want %d", open, many)
		}
	})
}

func TestController_RejectedFindingsHideNoOtherFinding(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		for i := range 200 {
			w.addService(fmt.Sprint("gone", i), "None", int32(30000+i))
		}
		w.addService("affected", "None", 32000) // the last by name
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(changeDelay) // it has listed all, and every grace period is running
		w.locked(func() { w.stale[KindServices] = true })
		for i := range 200 {
			w.deleteService(fmt.Sprint("gone", i))
		}
		time.Sleep(10 * time.Second)
		if opened, want := r.reporter.openedNames(), []string{"findings/not-allocated.node-ports.32000"}; !slices.Equal(opened, want) {
			t.Errorf("opened %v, want %v", opened, want)
		}
	})
}

func TestController_FindingThatCannotBeConfirmedStaysPending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("affected", "None", 30002)
		w.putBits(30002)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		w.locked(func() { w.readErr = rangestore.ErrUnavailable })
		w.putBits()
		time.Sleep(time.Minute)
		want := map[string]allocation.FindingState{"findings/not-allocated.node-ports.30002": allocation.StatePending}
		if diff := cmp.Diff(want, r.current(t)); diff != "" {
			t.Errorf("findings differ (-want +got):\n%s", diff)
		}
		if err := r.lastError(); !errors.Is(err, rangestore.ErrUnavailable) {
			t.Errorf("error = %v, want %v", err, rangestore.ErrUnavailable)
		}
		w.locked(func() { w.readErr = nil })
		time.Sleep(time.Minute)
		want["findings/not-allocated.node-ports.30002"] = allocation.StateOpen
		if diff := cmp.Diff(want, r.current(t)); diff != "" {
			t.Errorf("afterwards findings differ (-want +got):\n%s", diff)
		}
	})
}

// A port is allocated within one pass despite many write conflicts, and without a list of all
// Services.
func TestController_SetsABitDespiteConcurrentAllocations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const conflicts = maxSetAttempts - 1
		w := newFakeCluster(t)
		w.addService("affected", "None", 30002)
		w.putBits(30002)
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(settleTime)
		lost := 0
		w.onWrite(func(write string, after bool) error {
			if write == "swap servicenodeports" && !after && lost < conflicts {
				lost++
				w.putBits(30100 + lost)
			}
			return nil
		})
		w.putBits()
		time.Sleep(time.Second)
		if !w.hasPort(30002) || !w.hasPort(30100+conflicts) || lost != conflicts {
			t.Errorf("allocated: %t, the other writer's: %t, after %d conflicts", w.hasPort(30002), w.hasPort(30100+conflicts), lost)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.lists != 0 {
			t.Errorf("%d lists of all services, want none", w.lists)
		}
	})
}

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
	t.Parallel()
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
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		wantPendingUntil(t, r, func() { w.onWrite(nil) })
	})
}

func TestController_PassWithABrokenWatchIsNoObservation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		watcher := w.watching()
		watcher.OnError(KindServices, guarded.ErrUnavailable)
		wantPendingUntil(t, r, func() { watcher.OnError(KindServices, nil) })
	})
}

func TestController_SkipsTheStepsOfAFindingAfterAFailedStep(t *testing.T) {
	t.Parallel()
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
		repair, err := r.apply(r.plan(t, "findings/wrong-reference.ip-addresses.10.0.0.3"))
		if err != nil || len(repair.Results) != 2 || repair.State() != repairstore.Failed {
			t.Fatalf("repair %+v, %v", repair, err)
		}
		if got := repair.Results[0]; got.State != repairstore.StepFailed || !strings.Contains(got.Error, "forbidden") {
			t.Errorf("step 1: %+v, want it failed: forbidden", got)
		}
		if got := repair.Results[1]; got.State != repairstore.StepSkipped {
			t.Errorf("step 2: %+v, want it skipped", got)
		}
	})
}
