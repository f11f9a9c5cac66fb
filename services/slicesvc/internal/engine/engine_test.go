package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/apply"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/engine"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func node(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
}

func key(name string) engine.Key { return engine.Key{Namespace: slicetest.Namespace, Name: name} }

// shop fills an engine with Service web and two pods of it, and lets it work.
func shop(t *testing.T) (*engine.Engine, *apiserver, term) {
	t.Helper()
	e, api := start(t)
	e.PutNode(node("node-a", "zone-a"))
	e.PutService(slicetest.Service("web"))
	e.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
	e.PutPod(slicetest.Pod("web-1", "10.1.0.2"))
	held := lead(t, e)
	settle(100 * time.Millisecond)
	if got := describe(api.only(t)); got != "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a" {
		t.Fatalf("slice holds %s", got)
	}
	if got := api.took(); got != 1 {
		t.Fatalf("%d writes at the start, want 1", got)
	}
	return e, api, held
}

// describe tells the endpoints of a slice.
func describe(slice *discoveryv1.EndpointSlice) string {
	var all []string
	for _, endpoint := range slice.Endpoints {
		text := endpoint.Addresses[0]
		if *endpoint.Conditions.Ready {
			text += " ready"
		}
		if endpoint.Zone != nil {
			text += " " + *endpoint.Zone
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func TestRun_FollowsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		for _, step := range []struct {
			name   string
			change func()
			want   string
			writes int
		}{
			{
				name:   "a pod is not ready",
				change: func() { e.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready)) },
				want:   "10.1.0.1 zone-a, 10.1.0.2 ready zone-a",
				writes: 1,
			},
			{
				name: "it fails, with no other change",
				change: func() {
					e.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }))
				},
				want:   "10.1.0.2 ready zone-a",
				writes: 1,
			},
			{
				name:   "a pod comes",
				change: func() { e.PutPod(slicetest.Pod("web-2", "10.1.0.3")) },
				want:   "10.1.0.2 ready zone-a, 10.1.0.3 ready zone-a",
				writes: 1,
			},
			{
				name:   "a pod goes",
				change: func() { e.DeletePod(slicetest.Pod("web-1", "10.1.0.2")) },
				want:   "10.1.0.3 ready zone-a",
				writes: 1,
			},
			{
				name: "a pod is put again as it is",
				change: func() {
					e.PutPod(slicetest.Pod("web-2", "10.1.0.3", func(pod *corev1.Pod) { pod.ResourceVersion = "99" }))
				},
				want: "10.1.0.3 ready zone-a",
			},
			{
				name:   "the node moves to another zone",
				change: func() { e.PutNode(node("node-a", "zone-b")) },
				want:   "10.1.0.3 ready zone-b",
				writes: 1,
			},
			{
				name:   "the node is deleted",
				change: func() { e.DeleteNode(node("node-a", "zone-b")) },
				want:   "10.1.0.3 ready zone-b",
			},
			{
				name: "a pod on a node that does not exist",
				change: func() {
					e.PutPod(slicetest.Pod("web-3", "10.1.0.4", func(pod *corev1.Pod) { pod.Spec.NodeName = "node-z" }))
					e.PutNode(node("node-a", "zone-b"))
				},
				want: "10.1.0.3 ready zone-b",
			},
			{
				name:   "the node appears",
				change: func() { e.PutNode(node("node-z", "zone-z")) },
				want:   "10.1.0.3 ready zone-b, 10.1.0.4 ready zone-z",
				writes: 1,
			},
			{
				name:   "the selector changes",
				change: func() { e.PutService(slicetest.Service("web", selectorOf("other"))) },
				want:   "",
				writes: 1,
			},
			{
				name:   "the selector goes: the slice is left alone",
				change: func() { e.PutService(slicetest.Service("web", func(s *corev1.Service) { s.Spec.Selector = nil })) },
				want:   "",
			},
			{
				name:   "the Service goes: its slices are the garbage collector's",
				change: func() { e.DeleteService(slicetest.Service("web")) },
				want:   "",
			},
		} {
			step.change()
			settle(100 * time.Millisecond)
			if got := describe(api.only(t)); got != step.want {
				t.Errorf("%s: slice holds %q, want %q", step.name, got, step.want)
			}
			if got := api.took(); got != step.writes {
				t.Errorf("%s: %d writes, want %d", step.name, got, step.writes)
			}
		}
	})
}

func selectorOf(app string) func(*corev1.Service) {
	return func(service *corev1.Service) { service.Spec.Selector = map[string]string{"app": app} }
}

func TestRun_RevertsWhatOthersDoToOurSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, api, _ := shop(t)
		const want = "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a"
		for name, meddle := range map[string]func(name string){
			"edited": func(name string) {
				api.edit(name, func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[:1] })
			},
			"relabelled": func(name string) { api.edit(name, func(s *discoveryv1.EndpointSlice) { s.Labels["a"] = "b" }) },
			"deleted":    api.delete,
		} {
			meddle(api.only(t).Name)
			settle(100 * time.Millisecond)
			if got := describe(api.only(t)); got != want {
				t.Errorf("%s: slice holds %q, want %q", name, got, want)
			}
			if got := api.took(); got != 1 {
				t.Errorf("%s: %d writes, want 1", name, got)
			}
		}
	})
}

// An event that comes while a pass writes may be of that pass, or not: here
// somebody else deletes a slice while another one of the Service is written.
func TestRun_NoticesOthersHandsDuringAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		for i := 2; i < 150; i++ {
			e.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		settle(time.Second)
		meddled := false
		api.refuseWith(func(change pack.Change) error {
			for name := range api.slices {
				if !meddled && name != change.Slice.Name {
					meddled = true
					api.remove(name)
				}
			}
			return nil
		})
		e.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		settle(time.Second)
		if got := api.count(); !meddled || got != 2 {
			t.Errorf("%d slices, want the one deleted meanwhile replaced", got)
		}
	})
}

func TestRun_SliceGivenAwayIsReplacedUnderAnotherName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		lost := api.only(t).Name
		api.edit(lost, func(slice *discoveryv1.EndpointSlice) { slice.Labels[discoveryv1.LabelManagedBy] = "somebody" })
		settle(100 * time.Millisecond)
		state, _ := e.State(key("web"))
		if len(state.Slices) != 1 || state.Slices[0].Name == lost {
			t.Errorf("slices are %v, want one that is not %s", state.Slices, lost)
		}
		if got := api.took(); got != 1 {
			t.Errorf("%d writes, want 1", got)
		}
	})
}

// A watch that lags two seconds must not make the engine plan from the past:
// the second pass waits for the event of the first write, and not longer.
func TestRun_WaitsForItsOwnWritesAndNotLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		api.mu.Lock()
		api.lag = 2 * time.Second
		api.mu.Unlock()
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		settle(100 * time.Millisecond)
		e.PutPod(slicetest.Pod("web-3", "10.1.0.4"))
		settle(1800 * time.Millisecond)
		if got := api.took(); got != 1 {
			t.Fatalf("%d writes before the first was shown, want 1", got)
		}
		if preview, _ := e.Preview(key("web")); !preview.Behind {
			t.Error("the preview does not say that the cache is behind")
		}
		settle(200 * time.Millisecond)
		if got := len(api.only(t).Endpoints); got != 4 {
			t.Errorf("%d endpoints once the first write was shown, want 4", got)
		}
		settle(20 * time.Second)
		if got := api.took(); got != 1 {
			t.Errorf("%d more writes, want 1", got)
		}
	})
}

func TestRun_FrozenWatchWedgesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		thaw := api.freeze()
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		settle(time.Minute)
		e.PutPod(slicetest.Pod("web-3", "10.1.0.4"))
		settle(time.Minute)
		if state, _ := e.State(key("web")); state.History.Failures == 0 {
			t.Error("plans from a frozen cache were not refused")
		}
		thaw()
		settle(2 * time.Minute)
		if got := len(api.only(t).Endpoints); got != 4 {
			t.Errorf("%d endpoints after the watch went on, want 4", got)
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
			return fmt.Errorf("update: %w", apply.ErrConflict)
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
		if err, ok := held.reports.last(); err != nil || !ok {
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

func webSlice(t *testing.T, e *engine.Engine) *discoveryv1.EndpointSlice {
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
		if err, ok := held.reports.last(); err != nil || !ok {
			t.Fatalf("reports %v at rest, want success", err)
		}
		api.refuseWith(func(pack.Change) error { return errBusy })
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		settle(5 * time.Second)
		if err, _ := held.reports.last(); err == nil || !strings.Contains(err.Error(), "1 of 1 services fail, shop/web with: busy") {
			t.Errorf("reports %v, want that the only Service fails", err)
		}
		api.refuseWith(nil)
		settle(2 * time.Minute)
		if err, _ := held.reports.last(); err != nil {
			t.Errorf("still reports %v", err)
		}
	})
}

func TestRun_TerminatingNamespaceIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		api.refuseWith(func(pack.Change) error { return fmt.Errorf("create: %w", apply.ErrNamespaceTerminating) })
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

func TestRun_WritesOnlyDuringATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, held := shop(t)
		held.end()
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		e.PutService(slicetest.Service("new"))
		settle(time.Minute)
		if got := api.took(); got != 0 {
			t.Errorf("%d writes without a term, want none", got)
		}
		if got := e.QueueLength(); got != 0 {
			t.Errorf("queue holds %d without a term, want none", got)
		}
		preview, _ := e.Preview(key("web"))
		if len(preview.Plan.Changes) != 1 || preview.Plan.Changes[0].Added != 1 {
			t.Errorf("a standby plans %+v, want one endpoint added", preview.Plan)
		}
		lead(t, e)
		settle(100 * time.Millisecond)
		if got := api.took(); got != 2 {
			t.Errorf("%d writes in the next term, want 2", got)
		}
	})
}

func TestRun_EndOfTermCutsAPassShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, held := shop(t)
		for i := range 20 {
			e.PutService(slicetest.Service(fmt.Sprintf("svc-%d", i)))
		}
		time.Sleep(3 * time.Millisecond)
		held.end()
		done := api.took()
		if done == 0 || done >= 20 {
			t.Errorf("%d of 20 Services were written when the term ended, want some", done)
		}
		for _, key := range e.Keys("") {
			if state, _ := e.State(key); state.History.Failures > 0 {
				t.Errorf("the end of the term counts as a failure of %s: %+v", key, state.History)
			}
		}
		settle(time.Minute)
		if got := api.took(); got != 0 {
			t.Errorf("%d writes after the term ended", got)
		}
		lead(t, e)
		settle(time.Minute)
		if got := done + api.took(); got != 20 {
			t.Errorf("%d writes over both terms, want 20", got)
		}
	})
}

func TestRun_ServiceMadeAgainGetsSlicesOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		old := api.only(t)
		e.DeleteService(slicetest.Service("web"))
		e.PutService(slicetest.Service("web", func(service *corev1.Service) { service.UID = "made again" }))
		settle(100 * time.Millisecond)
		slice := api.only(t)
		if slice.UID == old.UID || slice.OwnerReferences[0].UID != "made again" {
			t.Errorf("slice %s (%s) is owned by %s, want a new one of the new Service", slice.Name, slice.UID, slice.OwnerReferences[0].UID)
		}
		if got := len(slice.Endpoints); got != 2 {
			t.Errorf("%d endpoints, want 2", got)
		}
	})
}

// A finalizer of somebody else's keeps a slice that we deleted; the Service must
// not wait for it to go.
func TestRun_FinalizerOnADeletedSliceHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		old := api.only(t).Name
		api.edit(old, func(slice *discoveryv1.EndpointSlice) { slice.Finalizers = []string{"example.com/wait"} })
		e.PutService(slicetest.Service("web", func(service *corev1.Service) { service.UID = "made again" }))
		settle(100 * time.Millisecond)
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		settle(100 * time.Millisecond)
		api.mu.Lock()
		defer api.mu.Unlock()
		for name, slice := range api.slices {
			if name != old && len(slice.Endpoints) != 3 {
				t.Errorf("slice %s holds %d endpoints, want 3", name, len(slice.Endpoints))
			}
		}
		if api.slices[old].DeletionTimestamp == nil || len(api.slices) != 2 {
			t.Errorf("%d slices, want the new one and the old one being deleted", len(api.slices))
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
		if got := api.count(); got != 2 {
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
