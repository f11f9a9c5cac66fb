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

// On a busy machine a bitmap is told long before the Services, so that a Service that is gone seems to have lost its port and
// its address. A Service that really has lost them is found at the same time.
func TestAuditor_WhatOnlyWatchesOutOfStepShowIsNeverOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.service("gone", "10.0.0.1", 30001)
		w.address("10.0.0.1", "gone")
		w.service("robbed", "10.0.0.2", 30002)
		w.address("10.0.0.2", "robbed")
		w.putBits(30001, 30002)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)

		w.mu.Lock()
		w.stale[KindServices] = true
		w.mu.Unlock()
		w.remove("gone")
		w.freeAddress("10.0.0.1")
		w.freeAddress("10.0.0.2")
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
		w.remove("gone") // as the watch tells it at last
		time.Sleep(settleTime)
		view, err := r.Snapshot()
		if err != nil || len(view.Current) != 2 || len(view.Ended) != 0 {
			t.Errorf("view %+v, %v, want two findings and nothing of the others", view, err)
		}
	})
}

// What is wrong a thousandfold is open after a while, though a pass looks at a part of it only.
func TestAuditor_MoreThanAPassLooksAtIsOpenAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 5*maxConfirm + 7
		w := newFakeCluster(t)
		for i := range many {
			w.service(fmt.Sprint("s", i), "None", int32(30000+i))
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

// However many look wrong and are not, what is wrong is found.
func TestAuditor_WhatIsDoubtedAgainAndAgainHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		for i := range 2 * maxConfirm {
			w.service(fmt.Sprint("gone", i), "None", int32(30000+i))
		}
		w.service("robbed", "None", 32000) // the last by name
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settle) // it has read all, and nothing is ripe
		w.mu.Lock()
		w.stale[KindServices] = true
		w.mu.Unlock()
		for i := range 2 * maxConfirm {
			w.remove(fmt.Sprint("gone", i))
		}
		time.Sleep(10 * time.Second)
		if opened, want := r.reporter.openedNames(), []string{"findings/not-allocated.node-ports.32000"}; !slices.Equal(opened, want) {
			t.Errorf("opened %v, want %v", opened, want)
		}
	})
}

// While nothing can be read, nothing new is called open; the error says so, and what is known is shown.
func TestAuditor_WhatCannotBeLookedAtIsNotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.service("robbed", "None", 30002)
		w.putBits(30002)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		w.mu.Lock()
		w.unread = rangestore.ErrUnavailable
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
		w.unread = nil
		w.mu.Unlock()
		time.Sleep(time.Minute)
		want["findings/not-allocated.node-ports.30002"] = allocation.StateOpen
		if diff := cmp.Diff(want, r.current(t)); diff != "" {
			t.Errorf("afterwards findings differ (-want +got):\n%s", diff)
		}
	})
}

// A port is allocated within the same pass, however often kube-apiserver is faster, and without a list of all Services.
func TestAuditor_ABitIsSetInTheMidstOfAllocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rivals = maxSetAttempts - 1
		w := newFakeCluster(t)
		w.service("robbed", "None", 30002)
		w.putBits(30002)
		cfg := w.config()
		cfg.AutoRepair = true
		r := w.lead(t, cfg)
		defer r.end()
		time.Sleep(settleTime)
		lost := 0
		w.onWrite(func(write string, after bool) error {
			if write == "swap servicenodeports" && !after && lost < rivals {
				lost++
				w.putBits(30100 + lost)
			}
			return nil
		})
		w.putBits()
		time.Sleep(time.Second)
		if !w.hasPort(30002) || !w.hasPort(30100+rivals) || lost != rivals {
			t.Errorf("allocated: %t, the rival's: %t, after %d races", w.hasPort(30002), w.hasPort(30100+rivals), lost)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.lists != 0 {
			t.Errorf("%d lists of all services, want none", w.lists)
		}
	})
}
