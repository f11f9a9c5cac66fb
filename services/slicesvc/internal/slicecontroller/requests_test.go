package slicecontroller_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// A Node that is deleted causes no sync, so only a request applies the plan without its Pods.
func TestReconcile_StalePlanWritesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		before, _ := controller.State(key("web"))
		controller.DeleteNode(node("node-a", "zone-a"))
		advance(time.Minute)
		preview, _ := controller.Preview(key("web"))
		if len(preview.Plan.Changes) != 1 {
			t.Fatalf("plan is %+v, want one change", preview.Plan)
		}
		if _, err := controller.Reconcile(t.Context(), key("web"), "stale"); !errors.Is(err, slicecontroller.ErrPlanChanged) {
			t.Errorf("error is %v, want ErrPlanChanged", err)
		}
		advance(time.Minute)
		after, _ := controller.State(key("web"))
		if diff := gocmp.Diff(before.History, after.History); diff != "" || after.LastPlan != before.LastPlan {
			t.Errorf("the rejected request counts as a sync:\n%s", diff)
		}
		if got := cluster.takeWrites(); got != 0 {
			t.Errorf("%d writes for a stale plan, want none", got)
		}
		result, err := controller.Reconcile(t.Context(), key("web"), preview.Fingerprint)
		if err != nil || result.Fingerprint != preview.Fingerprint || len(result.Outcomes) != 1 || result.Outcomes[0].State != slicecontroller.Applied {
			t.Errorf("the plan that was read gives %+v, %v", result, err)
		}
		if diff := gocmp.Diff([]string{"node-a"}, result.MissingNodes); diff != "" {
			t.Errorf("missing nodes (-want +got):\n%s", diff)
		}
	})
}

// A change that waits is written, whatever a request wants.
func TestReconcile_StalePlanDelaysNoChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		cluster.refuseWith(func(pack.Change) error { return errBusy })
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		advance(10 * time.Second)
		cluster.refuseWith(nil)
		if _, err := controller.Reconcile(t.Context(), key("web"), "stale"); !errors.Is(err, slicecontroller.ErrPlanChanged) {
			t.Errorf("error is %v, want ErrPlanChanged", err)
		}
		advance(100 * time.Millisecond)
		if got := len(cluster.onlySlice(t).Endpoints); got != 3 {
			t.Errorf("%d endpoints, want the pending one, too", got)
		}
	})
}

// Another writer has deleted a slice that the plan deletes.
func TestReconcile_SaysWhatWasNotNeeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		busy.Store(true)
		controller, cluster := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
			deps.Writer = goneWriter{Writer: deps.Writer, busy: &busy}
		})
		putService(controller, "web", 0)
		holdAllShards(t, controller)
		advance(100 * time.Millisecond)
		service := slicetest.Service("web", selectorOf("web"))
		cluster.storeAsOther(slicetest.Slice(service, "web-other", slicetest.Pods(0, 1)))
		advance(10 * time.Second)
		busy.Store(false)
		result, err := controller.Reconcile(t.Context(), key("web"), "")
		var states []slicecontroller.OutcomeState
		for _, outcome := range result.Outcomes {
			states = append(states, outcome.State)
		}
		if diff := gocmp.Diff([]slicecontroller.OutcomeState{slicecontroller.NotNeeded}, states); err != nil || diff != "" {
			t.Errorf("error %v, outcomes (-want +got):\n%s", err, diff)
		}
	})
}

// A retry of an urgent change does not wait for changes that are less urgent.
func TestRun_RetryIsAsUrgentAsTheChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const others = 30
		controller, cluster := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.Workers = 1 })
		putService(controller, "web", 1)
		for i := range others {
			putService(controller, fmt.Sprint("svc-", i), 1)
		}
		holdAllShards(t, controller)
		advance(time.Second)
		cluster.takeWrites()
		refused := false
		cluster.refuseWith(func(change pack.Change) error {
			if !refused && change.Slice.Labels[discoveryv1.LabelServiceName] == "web" {
				refused = true
				return errBusy
			}
			return nil
		})
		controller.PutPod(slicetest.Pod("web-0", slicetest.Address(0), labelledApp("web"), slicetest.Unready))
		time.Sleep(95 * time.Millisecond) // the retry is due 100 ms after the failure
		for i := range others {
			app := fmt.Sprint("svc-", i)
			controller.PutPod(slicetest.Pod(app+"-new", slicetest.Address(1), labelledApp(app), slicetest.Unready))
		}
		advance(time.Second)
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		place := slices.IndexFunc(cluster.writes, func(write string) bool { return strings.HasPrefix(write, "update web-") })
		if place < 0 || place > 10 || len(cluster.writes) != others+1 {
			t.Errorf("the retry was write %d of %d, want one of the first ten", place+1, len(cluster.writes))
		}
	})
}

// Every Service gets another label. A Pod that stops being ready does not wait for these.
func TestRun_LabelsOfServicesGoBeforeNoChangeOfEndpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const others = 30
		controller, cluster := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.Workers = 1 })
		putService(controller, "web", 1)
		for i := range others {
			putService(controller, fmt.Sprint("svc-", i), 1)
		}
		holdAllShards(t, controller)
		advance(time.Second)
		cluster.takeWrites()
		for i := range others {
			name := fmt.Sprint("svc-", i)
			controller.PutService(slicetest.Service(name, selectorOf(name), func(service *corev1.Service) {
				service.Labels = map[string]string{"team": "a"}
				service.ResourceVersion = "2"
			}))
		}
		controller.PutPod(slicetest.Pod("web-0", slicetest.Address(0), labelledApp("web"), slicetest.Unready))
		advance(time.Second)
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		place := slices.IndexFunc(cluster.writes, func(write string) bool { return strings.HasPrefix(write, "update web-") })
		if place < 0 || place > 5 || len(cluster.writes) != others+1 {
			t.Errorf("the Pod's change was write %d of %d, want one of the first", place+1, len(cluster.writes))
		}
	})
}
