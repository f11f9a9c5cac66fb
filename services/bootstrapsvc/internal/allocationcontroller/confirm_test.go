package allocationcontroller

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
)

// On a busy machine, an event of a bitmap may arrive long before the events of Services. A deleted
// Service then looks like one that lost its port and its address. A Service that has really lost
// them is found at the same time.
func TestController_WatchesOutOfStepOpenNoFinding(t *testing.T) {
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

		w.mu.Lock()
		w.stale[KindServices] = true
		w.mu.Unlock()
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

		w.mu.Lock()
		w.stale[KindServices] = false
		w.mu.Unlock()
		w.relist(KindServices)
		w.deleteService("gone") // the delayed event
		time.Sleep(settleTime)
		snapshot, err := r.Snapshot()
		if err != nil || len(snapshot.Current) != 2 || len(snapshot.Ended) != 0 {
			t.Errorf("snapshot %+v, %v, want two findings and nothing of the others", snapshot, err)
		}
	})
}

func TestController_OpensMoreFindingsThanOnePassConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 5*maxConfirm + 7
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
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		for i := range 2 * maxConfirm {
			w.addService(fmt.Sprint("gone", i), "None", int32(30000+i))
		}
		w.addService("affected", "None", 32000) // the last by name
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(changeDelay) // it has listed all, and every grace period is running
		w.mu.Lock()
		w.stale[KindServices] = true
		w.mu.Unlock()
		for i := range 2 * maxConfirm {
			w.deleteService(fmt.Sprint("gone", i))
		}
		time.Sleep(10 * time.Second)
		if opened, want := r.reporter.openedNames(), []string{"findings/not-allocated.node-ports.32000"}; !slices.Equal(opened, want) {
			t.Errorf("opened %v, want %v", opened, want)
		}
	})
}

func TestController_FindingThatCannotBeConfirmedStaysPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("affected", "None", 30002)
		w.putBits(30002)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		w.mu.Lock()
		w.readErr = rangestore.ErrUnavailable
		w.mu.Unlock()
		w.putBits()
		time.Sleep(time.Minute)
		want := map[string]allocation.FindingState{"findings/not-allocated.node-ports.30002": allocation.StatePending}
		if diff := cmp.Diff(want, r.current(t)); diff != "" {
			t.Errorf("findings differ (-want +got):\n%s", diff)
		}
		if err := r.lastError(); !errors.Is(err, rangestore.ErrUnavailable) {
			t.Errorf("error = %v, want %v", err, rangestore.ErrUnavailable)
		}
		w.mu.Lock()
		w.readErr = nil
		w.mu.Unlock()
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
	synctest.Test(t, func(t *testing.T) {
		const conflicts = maxSetAttempts - 1
		w := newFakeCluster(t)
		w.addService("affected", "None", 30002)
		w.putBits(30002)
		cfg := w.config()
		cfg.AutoRepair = true
		r := w.lead(t, cfg)
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
