package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// wantAllocatedWithin wants an address to be allocated within the target of one second.
func (w *fakeCluster) wantAllocatedWithin(t *testing.T, target time.Duration, addresses ...string) {
	t.Helper()
	time.Sleep(target)
	for _, address := range addresses {
		if got, _ := (fakeObjects{w}).IPAddress(t.Context(), address); got == nil {
			t.Errorf("%s is in use and not allocated after %s", address, target)
		}
	}
}

// The create of several addresses hangs as long as a worker waits, each time.
func TestFairness_RequestsThatHangDelayNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		for i := range 5 {
			w.addService(fmt.Sprint("hangs", i), fmt.Sprint("10.0.0.", i+1))
		}
		w.addService("lost", "10.0.0.100")
		w.onWrite(func(write string, after bool) error {
			if strings.HasPrefix(write, "create 10.0.0.") && write != "create 10.0.0.100" && write != "create 10.0.0.101" && !after {
				time.Sleep(workTimeout)
				return guarded.ErrUnavailable
			}
			return nil
		})
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		w.wantAllocatedWithin(t, time.Second, "10.0.0.100")
		time.Sleep(5*time.Minute + 3*time.Second)
		w.addService("later", "10.0.0.101")
		w.wantAllocatedWithin(t, time.Second, "10.0.0.101")
	})
}

// The compare-and-swap that frees a port loses to NodePort churn each time, and each attempt takes
// two seconds for the list of all Services.
func TestFairness_ALeakThatAlwaysLosesDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(60 * time.Second)
		var lost atomic.Int64
		w.onWrite(func(write string, after bool) error {
			if write == "swap servicenodeports" && !after {
				time.Sleep(2 * time.Second)
				lost.Add(1)
				return rangestore.ErrConflict
			}
			return nil
		})
		for lost.Load() == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		for i := range 20 {
			address := fmt.Sprint("10.0.0.", 10+i)
			w.addService(fmt.Sprint("lost", i), address)
			w.wantAllocatedWithin(t, time.Second, address)
		}
		if lost.Load() < 5 {
			t.Errorf("the leak was tried %d times only", lost.Load())
		}
	})
}

// A policy refuses the create of one address for fifty minutes. That is one repair with attempts.
func TestFairness_ARefusedStepIsOneRepair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("refused", "10.0.0.1")
		w.onWrite(func(write string, after bool) error {
			if write == "create 10.0.0.1" && !after {
				return errors.New("denied by a policy")
			}
			return nil
		})
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(50 * time.Minute)
		repairs := w.repairs(t)
		if len(repairs) != 1 || repairs[0].State() != repairstore.Running {
			t.Fatalf("%d repairs after 50 minutes, want one that runs", len(repairs))
		}
		if progress := repairs[0].Progress.Steps[0]; progress.Attempts < 20 || progress.Attempts > 60 || !strings.Contains(progress.Error, "policy") {
			t.Errorf("progress %+v, want its attempts and the reason", progress)
		}
		w.onWrite(nil)
		time.Sleep(refusedBackoffMax + time.Second)
		if repairs := w.repairs(t); len(repairs) != 1 || repairs[0].State() != repairstore.Succeeded {
			t.Errorf("%d repairs, the last with state %d and progress %+v, want one that has succeeded", len(repairs), repairs[0].State(), repairs[0].Progress)
		}
	})
}

// Automatic repairs do not push the repairs that people approved out of the history.
func TestFairness_ApprovedRepairsStayInTheHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("a", "10.0.0.1")
		w.addService("b", "10.0.0.1")
		cfg := w.autoRepairConfig()
		cfg.RepairHistory = 2
		r := w.lead(t, cfg)
		defer r.end()
		time.Sleep(settleTime)
		approved, err := r.apply(r.plan(t, missingAddress))
		if err != nil || approved.State() != repairstore.Succeeded {
			t.Fatalf("repair %+v, %v", approved, err)
		}
		for i := range 6 {
			w.addService(fmt.Sprint("s", i), fmt.Sprint("10.0.0.", 10+i))
			time.Sleep(settleTime)
		}
		time.Sleep(planLifetime + planRetention + period)
		stored := w.repairs(t)
		if len(stored) != 3 || !slices.ContainsFunc(stored, func(of repairstore.Repair) bool { return of.ID == approved.ID }) {
			t.Errorf("%d repairs are stored, want the approved one and two automatic ones", len(stored))
		}
		if plan, exists, err := (fakeStore{w}).Plan(t.Context(), approved.Plan); err != nil || !exists || plan.Repair != approved.ID {
			t.Errorf("the plan of a stored repair is %+v, %t, %v, want it kept", plan, exists, err)
		}
	})
}

// Another writer annotates an IPAddress with the wrong parent all the time.
func TestFairness_AnAnnotationIsNoConflict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("owner", "10.0.0.1")
		w.addService("other", "10.0.0.2")
		w.addAddress("10.0.0.2", "other")
		w.addAddress("10.0.0.1", "other")
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		for range 60 {
			time.Sleep(100 * time.Millisecond)
			w.locked(func() {
				annotated := w.addresses["10.0.0.1"]
				annotated.ResourceVersion = fmt.Sprint(w.next())
				w.addresses["10.0.0.1"] = annotated
				w.sendAddress("10.0.0.1")
			})
		}
		got, _ := (fakeObjects{w}).IPAddress(t.Context(), "10.0.0.1")
		if got == nil || got.Parent.Name != "owner" {
			t.Errorf("10.0.0.1 is %+v, want it allocated for its owner", got)
		}
		if repairs := w.repairs(t); len(repairs) != 1 {
			t.Errorf("%d repairs, want one", len(repairs))
		}
	})
}

// A finding is ignored while a person's repair of it runs. What is not written yet is skipped.
func TestFairness_AnIgnoredFindingEndsThePersonsRepair(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		_, repair := blockedRepair(t, w, r)
		time.Sleep(time.Millisecond)
		if _, err := r.Ignore(r.ctx, IgnoreRequest{Finding: missingAddress, Caller: admin}); err != nil {
			t.Fatal(err)
		}
		w.onWrite(nil)
		time.Sleep(time.Minute)
		got := w.repairs(t)[0]
		if got.ID != repair.ID || got.State() == repairstore.Running || slices.Contains(w.writesDone(), "create 10.0.0.1") {
			t.Errorf("repair %+v, written %v, want it ended and the address not created", got, w.writesDone())
		}
	})
}

// One live read fails for minutes. Only its finding stays pending.
func TestFairness_AReadThatFailsKeepsOnlyItsFindingPending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("unreadable", "None", 30001)
		w.addService("lost", "10.0.0.2")
		w.locked(func() { w.readErr = rangestore.ErrUnavailable })
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		w.wantAllocatedWithin(t, time.Second, "10.0.0.2")
		if state := r.current(t)["findings/not-allocated.node-ports.30001"]; state != allocation.StatePending {
			t.Errorf("the finding that cannot be read is %d, want it pending", state)
		}
	})
}

// replacing returns a cluster with one address in the name of the wrong Service.
func replacing(t *testing.T) *fakeCluster {
	w := newFakeCluster(t)
	w.addService("owner", "10.0.0.1")
	w.addService("other", "10.0.0.2")
	w.addAddress("10.0.0.2", "other")
	w.addAddress("10.0.0.1", "other")
	return w
}

// kube-apiserver would refuse the create. Then nothing is deleted.
func TestReplace_DeletesNothingThatCannotBeCreated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := replacing(t)
		w.refused = map[string]error{"10.0.0.1": errors.New("denied by a policy")}
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(5 * time.Minute)
		if slices.Contains(w.writesDone(), "delete 10.0.0.1") {
			t.Error("an address in use was deleted that cannot be created")
		}
		w.locked(func() { w.refused = nil })
		time.Sleep(refusedBackoffMax + time.Second)
		if got, _ := (fakeObjects{w}).IPAddress(t.Context(), "10.0.0.1"); got == nil || got.Parent.Name != "owner" {
			t.Errorf("10.0.0.1 is %+v, want it allocated for its owner", got)
		}
	})
}

// The process crashes right after the delete. The next leader creates the address before its
// watches have listed anything, also without automatic repairs.
func TestReplace_TheNextLeaderCreatesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := replacing(t)
		first := w.lead(t, w.config())
		time.Sleep(settleTime)
		plan := first.plan(t)
		w.onWrite(func(write string, after bool) error {
			if write == "delete 10.0.0.1" && after {
				first.lose()
				return errCrash
			}
			return nil
		})
		if _, err := first.apply(plan); err == nil {
			t.Error("applied by a process that crashed")
		}
		first.end()
		w.onWrite(nil)
		w.locked(func() { w.stale[KindServices], w.listless = true, true })
		next := w.lead(t, w.config())
		defer next.end()
		w.wantAllocatedWithin(t, 100*time.Millisecond, "10.0.0.1")
		if _, err := next.Snapshot(); !errors.Is(err, ErrNotSynced) {
			t.Errorf("snapshot: %v, want %v: the watches have listed nothing", err, ErrNotSynced)
		}
	})
}

// A repair that has deleted an address in use cannot be cancelled before it is created again.
func TestReplace_IsNotCancelledHalfWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := replacing(t)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		plan := r.plan(t)
		w.onWrite(func(write string, after bool) error {
			if write == "create 10.0.0.1" && !after {
				return errors.New("denied by a policy")
			}
			return nil
		})
		if repair, err := r.apply(plan); err != nil || repair.State() != repairstore.Running {
			t.Fatalf("repair %+v, %v, want it running", repair, err)
		}
		if _, err := r.Cancel(r.ctx, CancelRequest{ID: plan.ID, Caller: admin}); !errors.Is(err, ErrRepairNotCancellable) {
			t.Errorf("cancel = %v, want %v", err, ErrRepairNotCancellable)
		}
		w.onWrite(nil)
		w.wantAllocatedWithin(t, 2*createPauseMax, "10.0.0.1")
	})
}

// The cluster is upgraded while a term lasts. For a while, kube-apiservers of both versions answer.
func TestStores_ChangeDuringATerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		before := Stores{Present: []allocation.Store{allocation.NodePorts}}
		w.discovered = &before
		w.addService("lost", "10.0.0.1")
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(time.Minute)
		snapshot, err := r.Snapshot()
		if err != nil || snapshot.Stores[0].Present {
			t.Fatalf("stores %+v, %v, want no objects", snapshot, err)
		}
		w.locked(func() { w.discovered = nil })
		time.Sleep(discoverInterval + time.Second)
		snapshot, err = r.Snapshot()
		if err != nil || !strings.HasPrefix(snapshot.Stores[0].Problem, "INCOMPLETE") || slices.Contains(w.writesDone(), "create 10.0.0.1") {
			t.Errorf("stores %+v, %v, want them incomplete", snapshot, err)
		}
		time.Sleep(sameAnswers * discoverInterval)
		w.wantAllocatedWithin(t, settleTime, "10.0.0.1")
		if snapshot, err = r.Snapshot(); err != nil || !snapshot.Stores[0].Present || snapshot.Stores[0].Problem != "" {
			t.Errorf("stores %+v, %v, want the objects", snapshot, err)
		}
	})
}

func TestServiceLists_CallersShareAListThatBeganAfterTheirCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int64
		lists := &serviceLists{ctx: t.Context(), spawn: func(do func()) { go do() }}
		lists.list = func(context.Context) ([]allocation.Service, error) {
			begun.Add(1)
			time.Sleep(time.Second)
			return nil, nil
		}
		start := time.Now()
		for i := range 10 {
			go func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				if _, err := lists.read(t.Context()); err != nil {
					t.Error(err)
				}
				if i > 0 && time.Since(start) < 2*time.Second {
					t.Errorf("call %d got a list that began before it", i)
				}
			}()
		}
		time.Sleep(3 * time.Second)
		if begun.Load() != 2 {
			t.Errorf("%d lists for ten calls, want two", begun.Load())
		}
	})
}
