package slicecontroller_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// What was written is known from the answer: the next pass needs no watch to go
// by, and what the watch shows of it later leads to none.
func TestRun_OwnWritesAreKnownBeforeTheWatchShowsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		api.mu.Lock()
		api.lag = 2 * time.Second
		api.mu.Unlock()
		for i := 2; i < 5; i++ {
			e.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
			settle(100 * time.Millisecond)
			if got := len(api.only(t).Endpoints); got != i+1 {
				t.Errorf("%d endpoints before the last write was shown, want %d", got, i+1)
			}
			if got := len(webSlice(t, e).Endpoints); got != i+1 {
				t.Errorf("the engine knows %d endpoints, want %d", got, i+1)
			}
		}
		settle(20 * time.Second)
		if got := api.took(); got != 3 || api.reads > 0 {
			t.Errorf("%d writes and %d reads, want 3 and none", got, api.reads)
		}
	})
}

func TestRun_FrozenWatchHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		thaw := api.freeze()
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		settle(time.Second)
		api.edit(api.only(t).Name, func(slice *discoveryv1.EndpointSlice) {
			slice.Endpoints, slice.Annotations = slice.Endpoints[:1], map[string]string{"note": "keep"}
		})
		e.PutPod(slicetest.Pod("web-3", "10.1.0.4"))
		settle(time.Second)
		if slice := api.only(t); len(slice.Endpoints) != 4 || slice.Annotations["note"] != "keep" || api.reads != 1 {
			t.Errorf("slice is %+v after %d reads, want somebody's edit answered after one", slice, api.reads)
		}
		thaw()
		settle(2 * time.Minute)
		if got := api.took(); got != 2 {
			t.Errorf("%d writes, want 2", got)
		}
		if state, _ := e.State(key("web")); state.History.Failures != 0 || state.History.LastError != "" {
			t.Errorf("history is %+v, want no failure", state.History)
		}
	})
}

func TestRun_ConflictCostsOneSliceOnePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		refused := false
		api.refuseWith(func(change pack.Change) error {
			if refused || change.Verb != pack.Update {
				return nil
			}
			refused = true
			return fmt.Errorf("update: %w", kube.ErrConflict)
		})
		// 110 more pods: 100 need a new slice, ten go into the old one, and only that update is refused.
		for i := 2; i < 112; i++ {
			e.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		settle(5 * time.Second)
		endpoints := map[string]int{}
		api.mu.Lock()
		for _, slice := range api.slices {
			for _, endpoint := range slice.Endpoints {
				endpoints[endpoint.TargetRef.Name]++
			}
		}
		api.mu.Unlock()
		if len(endpoints) != 112 {
			t.Errorf("%d pods have endpoints, want 112", len(endpoints))
		}
		for pod, count := range endpoints {
			if count != 1 {
				t.Errorf("pod %s has %d endpoints", pod, count)
			}
		}
		if !refused {
			t.Error("no update was refused")
		}
	})
}

func TestRun_OneBadServiceCostsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, held := shop(t)
		for _, name := range []string{"bad", "good", "fine"} {
			e.PutService(slicetest.Service(name))
		}
		api.refuseWith(func(change pack.Change) error {
			if change.Slice.Labels[discoveryv1.LabelServiceName] == "bad" {
				panic("no such thing")
			}
			return nil
		})
		e.PutService(slicetest.Service("bad", selectorOf("x")))
		for range 300 {
			e.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
			settle(time.Second)
			e.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
			settle(time.Second)
		}
		if reported, err := held.reports.last(); err != nil || !reported {
			t.Errorf("the work as a whole reports %v", err)
		}
		if got := describe(webSlice(t, e)); got != "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a" {
			t.Errorf("web holds %q", got)
		}
		bad, _ := e.State(key("bad"))
		// Pauses double from a tenth of a second to a minute: some 18 passes in ten minutes.
		if got := bad.History.Failures; got < 10 || got > 30 {
			t.Errorf("%d passes over the bad Service, want between 10 and 30", got)
		}
		if want := "panic: no such thing"; bad.History.LastError != want {
			t.Errorf("last error is %q, want %q", bad.History.LastError, want)
		}
	})
}

func webSlice(t *testing.T, e *slicecontroller.Engine) *discoveryv1.EndpointSlice {
	t.Helper()
	state, ok := e.State(key("web"))
	if !ok || len(state.Slices) != 1 {
		t.Fatalf("web has slices %v, want one", state.Slices)
	}
	return state.Slices[0]
}

func TestRun_ReportsWhenEverythingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, held := shop(t)
		settle(2 * time.Second)
		if reported, err := held.reports.last(); err != nil || !reported {
			t.Fatalf("reports %v at rest, want success", err)
		}
		api.refuseWith(func(pack.Change) error { return errBusy })
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		settle(5 * time.Second)
		if _, err := held.reports.last(); err == nil || !strings.Contains(err.Error(), "1 of 1 services fail, shop/web with: busy") {
			t.Errorf("reports %v, want that the only Service fails", err)
		}
		api.refuseWith(nil)
		settle(2 * time.Minute)
		if _, err := held.reports.last(); err != nil {
			t.Errorf("still reports %v", err)
		}
	})
}

func TestRun_TerminatingNamespaceIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		api.refuseWith(func(pack.Change) error { return fmt.Errorf("create: %w", kube.ErrNamespaceTerminating) })
		e.PutService(slicetest.Service("late"))
		settle(time.Minute)
		if state, _ := e.State(key("late")); state.History.Failures != 0 {
			t.Errorf("history is %+v, want no failure", state.History)
		}
		if got := api.took(); got != 0 {
			t.Errorf("%d writes, want none", got)
		}
	})
}

// Pods of a namespace that goes serve until they are gone: what would move to a
// slice that cannot be made any more stays where it is.
func TestRun_NothingMovesWhereATerminatingNamespaceLetsNothingBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api := start(t)
		e.PutNode(node("node-a", "zone-a"))
		service := slicetest.Service("web")
		e.PutService(service)
		for i := range 150 {
			e.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		full := slicetest.Slice(service, "web-full", slicetest.Pods(0, 150))
		api.mu.Lock()
		api.store(full)
		api.mu.Unlock()
		creates := 0
		api.refuseWith(func(change pack.Change) error {
			if change.Verb != pack.Create {
				return nil
			}
			creates++
			return fmt.Errorf("create: %w", kube.ErrNamespaceTerminating)
		})
		lead(t, e)
		settle(time.Minute)
		if got := len(api.only(t).Endpoints); got != 150 || creates != 1 {
			t.Errorf("%d endpoints are left of 150 after %d attempts to make a slice, want all after one", got, creates)
		}
	})
}

// As long as the slice with the new ports cannot be written, the one with the
// old ports is all that clients have.
func TestRun_NothingIsDeletedBeforeItsReplacementIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		for i := 2; i < 150; i++ {
			e.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		settle(time.Second)
		if got := api.size(); got != 2 {
			t.Fatalf("%d slices, want 2", got)
		}
		api.took()
		refused := 0
		api.refuseWith(func(change pack.Change) error {
			if change.Verb == pack.Update {
				refused++
				return errBusy
			}
			return nil
		})
		e.PutService(slicetest.Service("web", func(service *corev1.Service) {
			service.Spec.Ports[0].TargetPort = intstr.FromInt32(9090)
		}))
		for i := 50; i < 150; i++ {
			e.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		settle(10 * time.Second)
		if got := api.took(); got != 0 || refused == 0 {
			t.Errorf("%d writes while %d updates were refused, want none", got, refused)
		}
		api.refuseWith(nil)
		settle(2 * time.Minute)
		if got := len(api.only(t).Endpoints); got != 50 {
			t.Errorf("%d endpoints in the end, want 50", got)
		}
	})
}
