package slicecontroller_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestReconcile_SaysWhatItDid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, held := shop(t)
		e.PutService(slicetest.Service("bare", func(s *corev1.Service) { s.Spec.Selector = nil }))
		settle(time.Second)
		for name, want := range map[string]error{"none": slicecontroller.ErrNoService, "bare": slicecontroller.ErrUnmanaged} {
			if _, err := e.Reconcile(t.Context(), key(name)); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
		outcome, err := e.Reconcile(t.Context(), key("web"))
		if err != nil || !outcome.Applied || !outcome.Plan.Empty() {
			t.Errorf("nothing to do gives %+v, %v", outcome, err)
		}
		api.refuseWith(func(pack.Change) error { return fmt.Errorf("update: %w", kube.ErrConflict) })
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		settle(10 * time.Second)
		outcome, err = e.Reconcile(t.Context(), key("web"))
		if !errors.Is(err, kube.ErrConflict) || outcome.Applied || len(outcome.Plan.Changes) != 1 {
			t.Errorf("a conflict gives %+v, %v", outcome, err)
		}
		api.refuseWith(nil)
		outcome, err = e.Reconcile(t.Context(), key("web"))
		if err != nil || !outcome.Applied || len(outcome.Plan.Changes) != 1 {
			t.Errorf("one endpoint that waits for its retry gives %+v, %v", outcome, err)
		}
		if state, _ := e.State(key("web")); state.Last.Updates != 1 || state.Last.Trigger != slicecontroller.ByConflict {
			t.Errorf("last plan is %+v", state.Last)
		}
		held.end()
		if _, err := e.Reconcile(t.Context(), key("web")); !errors.Is(err, slicecontroller.ErrNotHeld) {
			t.Errorf("without a term: %v, want that the shard is not held", err)
		}
	})
}

func TestReconcile_EndsWithTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, held := shop(t)
		for i := 2; i < 300; i++ {
			e.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		returned := make(chan error, 1)
		go func() {
			_, err := e.Reconcile(context.Background(), key("web"))
			returned <- err
		}()
		time.Sleep(time.Millisecond)
		held.end()
		if err := <-returned; !errors.Is(err, slicecontroller.ErrNotHeld) {
			t.Errorf("%v, want that the shard is not held", err)
		}
	})
}

func TestChanges_TheLatestOfEachService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, _ := shop(t)
		changed := func(since uint64) []string {
			var names []string
			for _, c := range e.Changes(since).Services {
				names = append(names, fmt.Sprintf("%s gone=%t", c.Key.Name, c.Gone))
			}
			return names
		}
		start := e.Revision()
		more := e.Changes(start).More
		if got := changed(start); got != nil {
			t.Errorf("changes at rest: %v", got)
		}
		e.PutService(slicetest.Service("api"))
		select {
		case <-more:
		default:
			t.Error("nobody is told of the change")
		}
		e.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		settle(time.Second)
		e.DeleteService(slicetest.Service("api"))
		settle(time.Second)
		if diff := gocmp.Diff([]string{"web gone=false", "api gone=true"}, changed(start)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		if got := changed(e.Revision()); got != nil {
			t.Errorf("changes since now: %v", got)
		}
		if !e.Changes(e.Revision() + 1).Lost {
			t.Error("a revision of another process is taken for ours")
		}
		for i := range 20_000 {
			e.PutService(slicetest.Service(fmt.Sprint("svc-", i)))
			e.DeleteService(slicetest.Service(fmt.Sprint("svc-", i)))
		}
		if got := e.Changes(start); !got.Lost || len(got.Services) > 10_002 {
			t.Errorf("%d changes are remembered, lost: %t", len(got.Services), got.Lost)
		}
	})
}

func TestEndpoint_TellsWhatIsKnownOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		e.PutPod(slicetest.Pod("lone", "10.1.0.9", func(pod *corev1.Pod) { pod.Labels = nil }))
		for _, c := range []struct {
			service, pod string
			want         error
		}{{"none", "web-0", slicecontroller.ErrNoService}, {"web", "none", slicecontroller.ErrNoPod}} {
			if _, err := e.Endpoint(key(c.service), c.pod); !errors.Is(err, c.want) {
				t.Errorf("%s in %s: %v, want %v", c.pod, c.service, err, c.want)
			}
		}
		facts, err := e.Endpoint(key("web"), "web-0")
		if err != nil || !facts.Selected || facts.Pending || !facts.Candidate.NodeKnown || facts.Node.Zone != "zone-a" || len(facts.Slices) != 1 || facts.Limit != 100 {
			t.Errorf("facts are %+v, %v", facts, err)
		}
		if lone, err := e.Endpoint(key("web"), "lone"); err != nil || lone.Selected {
			t.Errorf("a pod that is not selected gives %+v, %v", lone, err)
		}
		api.refuseWith(func(pack.Change) error { return errBusy })
		e.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		settle(10 * time.Second)
		if facts, _ := e.Endpoint(key("web"), "web-0"); !facts.Pending {
			t.Error("a write that is due is not pending")
		}
	})
}

func TestState_TellsOfTheLastPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		name := api.only(t).Name
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3", turnedUnready(time.Now())))
		settle(time.Minute)
		began := time.Now()
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3", turnedUnready(began.Add(-time.Second)), func(pod *corev1.Pod) {
			pod.Status.Conditions[0].Status = corev1.ConditionTrue
		}))
		settle(time.Second)
		state, _ := e.State(key("web"))
		want := slicecontroller.LastPlan{
			Time:    began,
			Trigger: slicecontroller.ByPod,
			Latency: time.Second + 2*time.Millisecond,
			Updates: 1,
		}
		if diff := gocmp.Diff(want, state.Last); diff != "" {
			t.Errorf("last plan (-want +got):\n%s", diff)
		}
		if got := state.Written[name]; !got.Equal(began.Add(2 * time.Millisecond)) {
			t.Errorf("written at %v", got)
		}
	})
}

func TestRun_CleansUpAfterASelectorWhenAsked(t *testing.T) {
	for _, asked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e, api := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CleanUp = asked })
			lead(t, e)
			e.PutNode(node("node-a", "zone-a"))
			e.PutService(slicetest.Service("web"))
			e.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
			settle(time.Second)
			e.PutService(slicetest.Service("web", func(s *corev1.Service) { s.Spec.Selector = nil }))
			settle(time.Second)
			if gone := api.size() == 0; gone != asked {
				t.Errorf("%d slices are left, asked to clean up: %t", api.size(), asked)
			}
			e.PutService(slicetest.Service("web"))
			settle(time.Second)
			if got := len(api.only(t).Endpoints); got != 1 {
				t.Errorf("%d endpoints once the selector is back, want 1", got)
			}
		})
	}
}

func TestRun_CompactsAQuietService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CompactAfter = 5 * time.Second })
		lead(t, e)
		fillShop(e, "web", 1000)
		settle(time.Second)
		api.took()
		for i := range 1000 {
			if i%10 != 0 {
				e.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
				settle(10 * time.Millisecond) // one by one, so that no plan may join what it writes anyway
			}
		}
		settle(4 * time.Second)
		if before := api.size(); before < 2 {
			t.Fatalf("%d slices before, so there is nothing to compact", before)
		}
		settle(20 * time.Second)
		if got := len(endpointsOf(t, api)); api.size() != 1 || got != 100 {
			t.Errorf("%d slices with %d endpoints, want one with 100", api.size(), got)
		}
		state, _ := e.State(key("web"))
		if state.Last.Trigger != slicecontroller.ByCompaction {
			t.Errorf("last plan is %+v", state.Last)
		}
		api.took()
		settle(time.Hour)
		if got := api.took(); got != 0 {
			t.Errorf("%d writes afterwards", got)
		}
	})
}

// A cluster that is found with many half-empty slices is not rewritten at once.
func TestRun_CompactionHasOneBudgetForAllServices(t *testing.T) {
	const services = 300
	synctest.Test(t, func(t *testing.T) {
		e, api := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CompactAfter = 5 * time.Second })
		e.PutNode(node("node-a", "zone-a"))
		for i := range services {
			service := slicetest.Service(fmt.Sprint("web-", i), selectorOf(fmt.Sprint("web-", i)))
			e.PutService(service)
			for pod := range 2 {
				name := fmt.Sprint(service.Name, "-", pod)
				e.PutPod(slicetest.Pod(name, slicetest.Address(pod), labelledApp(service.Name)))
				left := slicetest.Slice(service, name, []desired.Candidate{slicetest.Candidate(slicetest.Pod(name, slicetest.Address(pod)))})
				api.mu.Lock()
				api.store(left)
				api.mu.Unlock()
			}
		}
		settle(time.Second)
		lead(t, e)
		settle(5 * time.Second)
		if got := api.took(); got != 0 || api.size() != 2*services {
			t.Fatalf("%d writes and %d slices, want none before all is quiet", got, api.size())
		}
		most := 0
		for range 60 {
			settle(time.Second)
			most = max(most, api.took())
		}
		if got := api.size(); most > 50 || got != services {
			t.Errorf("up to %d writes a second, and %d slices after a minute; want few and %d", most, got, services)
		}
	})
}

// A Service is quiet as long as nothing is written for it, whatever it is looked at for.
func TestRun_APassThatWritesNothingDoesNotPutCompactionOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CompactAfter = 5 * time.Second })
		lead(t, e)
		fillShop(e, "web", 300)
		settle(time.Second)
		for i := range 300 {
			if i%3 > 0 {
				e.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i), labelledApp("web")))
			}
		}
		settle(time.Second)
		scattered := api.size()
		for range 6 {
			if _, err := e.Reconcile(t.Context(), key("web")); err != nil {
				t.Fatal(err)
			}
			settle(time.Second)
		}
		if got := api.size(); scattered < 2 || got != 1 {
			t.Errorf("%d slices for 100 endpoints after they were quiet for 5s, and %d before", got, scattered)
		}
	})
}

// A second controller that writes its own idea each time we write ours.
func TestRun_ASecondWriterIsNotFought(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		e, api := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
			deps.Contended = func(service *corev1.Service, by string) { told = append(told, service.Name+" by "+by) }
		})
		lead(t, e)
		fillShop(e, "web", 3)
		settle(100 * time.Millisecond)
		name := api.only(t).Name
		undo := func(slice *discoveryv1.EndpointSlice) {
			slice.Endpoints[0].Zone = nil
			slice.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "other"}}
		}
		for range 600 {
			api.edit(name, undo)
			settle(time.Second)
		}
		if got := api.took(); got > 20 {
			t.Errorf("%d writes in ten minutes against somebody who writes each second", got)
		}
		state, _ := e.State(key("web"))
		if state.ContendedBy != "other" || len(told) == 0 || told[0] != "web by other" {
			t.Errorf("contended by %q, told %v", state.ContendedBy, told)
		}
		e.PutPod(slicetest.Pod("web-9", "10.1.0.99"))
		settle(time.Second)
		if got := len(api.only(t).Endpoints); got != 4 {
			t.Errorf("%d endpoints, want the missing one brought all the same", got)
		}
		if _, err := e.Reconcile(t.Context(), key("web")); err != nil || api.only(t).Endpoints[0].Zone == nil {
			t.Errorf("who asks for it does not get it: %v", err)
		}
		settle(time.Hour)
		if state, _ := e.State(key("web")); state.ContendedBy != "" || state.History.Failures > 0 {
			t.Errorf("after the other one has gone: %+v", state)
		}
	})
}

// A write may be stored although its answer never comes. What is seen of it then is
// our own work, and nobody's who would undo it.
func TestRun_AnUnansweredWriteIsNoSecondWriter(t *testing.T) {
	for name, lag := range map[string]time.Duration{"shown later": 100 * time.Millisecond, "shown meanwhile": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told []string
				e, api := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
					deps.Contended = func(service *corev1.Service, by string) { told = append(told, service.Name+" by "+by) }
				})
				lead(t, e)
				fillShop(e, "web", 3)
				settle(100 * time.Millisecond)
				lost, writes := 0, 0
				api.mu.Lock()
				api.lag = lag
				api.lose = func(pack.Change) error {
					if writes++; writes%2 == 1 {
						return nil
					}
					lost++
					return fmt.Errorf("update: %w", context.DeadlineExceeded)
				}
				api.mu.Unlock()
				for range 10 {
					e.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
					settle(time.Second)
					e.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
					settle(time.Second)
				}
				if state, _ := e.State(key("web")); state.ContendedBy != "" || len(told) > 0 || lost < 5 {
					t.Errorf("contended by %q, told %q, after %d writes of which %d were not answered", state.ContendedBy, told, writes, lost)
				}
				if got := len(api.only(t).Endpoints); got != 3 || !*api.only(t).Endpoints[0].Conditions.Ready {
					t.Errorf("slice is %+v, want three endpoints, all ready", api.only(t))
				}
			})
		})
	}
}

func TestSliceSeen_AsksForWhatIsNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, _ := shop(t)
		known := webSlice(t, e)
		seen := func(version string, change func(*metav1.ObjectMeta)) bool {
			meta := known.ObjectMeta.DeepCopy()
			meta.ResourceVersion = version
			if change != nil {
				change(meta)
			}
			return e.SliceSeen(meta)
		}
		foreign := func(meta *metav1.ObjectMeta) { meta.Labels[discoveryv1.LabelManagedBy] = "somebody" }
		for _, c := range []struct {
			name string
			got  bool
			want bool
		}{
			{"an echo", seen(known.ResourceVersion, nil), false},
			{"somebody's write", seen("1000", nil), true},
			{"not ours any more", seen("1001", foreign), false},
		} {
			if c.got != c.want {
				t.Errorf("%s: fetch is %t, want %t", c.name, c.got, c.want)
			}
		}
		settle(time.Second)
		if got := api.size(); got != 2 {
			t.Errorf("%d slices, want one more in place of that given away", got)
		}
	})
}

func TestMark_PaceLetsChangesOfPodsWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := &window{length: time.Second}
		e, api := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) { deps.Pace = pace })
		lead(t, e)
		fillShop(e, "web", 10)
		settle(2 * time.Second)
		api.took()
		for i := range 10 {
			e.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i), slicetest.Unready, labelledApp("web")))
			settle(50 * time.Millisecond)
		}
		if got := api.took(); got != 0 {
			t.Errorf("%d writes within the window", got)
		}
		settle(time.Second)
		if got := api.took(); got != 1 {
			t.Errorf("%d writes after it, want 1", got)
		}
		if pace.urgency != index.Urgent || pace.wrote == 0 {
			t.Errorf("the pace was told of urgency %d and %d writes", pace.urgency, pace.wrote)
		}
	})
}

// window is a Pace of fixed length.
type window struct {
	length  time.Duration
	urgency index.Urgency
	wrote   int
}

func (w *window) Wait(now time.Time, due slicecontroller.Due) time.Duration {
	w.urgency = due.Urgency
	return due.Since.Add(w.length).Sub(now)
}

func (w *window) Wrote(time.Time, time.Duration, error) { w.wrote++ }

// What comes while a pass is under way waits as long as what comes at any other time.
func TestMark_ChangesDuringAPassWaitAsLongAsOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) { deps.Pace = &window{length: time.Second} })
		lead(t, e)
		fillShop(e, "web", 10)
		settle(2 * time.Second)
		api.took()
		for i := range 10 {
			// The pass over the change before begins after a second, and takes two milliseconds.
			e.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i), slicetest.Unready, labelledApp("web")))
			settle(time.Second + time.Millisecond)
		}
		settle(2 * time.Second)
		if got := api.took(); got != 10 {
			t.Fatalf("%d writes, want 10", got)
		}
		e.PutPod(slicetest.Pod("web-0", slicetest.Address(0), labelledApp("web")))
		settle(time.Second + time.Millisecond) // the pass over it is under way
		for i := 1; i < 10; i++ {
			e.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i), labelledApp("web")))
			settle(50 * time.Millisecond)
		}
		if got := api.took(); got != 1 {
			t.Errorf("%d writes within the second window, want that of the first alone", got)
		}
		settle(time.Second)
		if got := api.took(); got != 1 {
			t.Errorf("%d writes after it, want 1", got)
		}
	})
}
