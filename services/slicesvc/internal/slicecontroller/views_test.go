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

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestReconcile_ReturnsWhatItWrote(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, held := startWithWeb(t)
		controller.PutService(slicetest.Service("bare", func(s *corev1.Service) { s.Spec.Selector = nil }))
		advance(time.Second)
		for name, want := range map[string]error{"none": slicecontroller.ErrServiceNotFound, "bare": slicecontroller.ErrUnmanaged} {
			if _, err := controller.Reconcile(t.Context(), key(name), ""); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
		reconcile := func(fingerprint string, wantErr error, want ...slicecontroller.OutcomeState) {
			t.Helper()
			got, err := controller.Reconcile(t.Context(), key("web"), fingerprint)
			var states []slicecontroller.OutcomeState
			for i, outcome := range got.Outcomes {
				states = append(states, outcome.State)
				if outcome.Time.IsZero() || (outcome.State == slicecontroller.Failed) != (outcome.Err != nil) {
					t.Errorf("outcome %d is %+v", i, outcome)
				}
			}
			if diff := gocmp.Diff(want, states); !errors.Is(err, wantErr) || diff != "" || len(states) != len(got.Plan.Changes) {
				t.Errorf("%d changes, error %v; outcomes (-want +got):\n%s", len(got.Plan.Changes), err, diff)
			}
		}
		reconcile("", nil)
		cluster.refuseWith(func(pack.Change) error { return fmt.Errorf("update: %w", kube.ErrConflict) })
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		advance(10 * time.Second)
		preview, _ := controller.Preview(key("web"))
		reconcile(preview.Fingerprint, kube.ErrConflict, slicecontroller.Failed)
		cluster.refuseWith(nil)
		reconcile(preview.Fingerprint, nil, slicecontroller.Applied)
		if state, _ := controller.State(key("web")); state.LastPlan.Updates != 1 || state.LastPlan.Trigger != slicecontroller.ByConflict {
			t.Errorf("last plan is %+v", state.LastPlan)
		}
		held.end()
		if _, err := controller.Reconcile(t.Context(), key("web"), ""); !errors.Is(err, slicecontroller.ErrShardNotHeld) {
			t.Errorf("without a term: %v, want ErrShardNotHeld", err)
		}
	})
}

func TestReconcile_EndsWithTheTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, _, held := startWithWeb(t)
		for i := 2; i < 300; i++ {
			controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		returned := make(chan error, 1)
		go func() {
			_, err := controller.Reconcile(context.Background(), key("web"), "")
			returned <- err
		}()
		time.Sleep(time.Millisecond)
		held.end()
		if err := <-returned; !errors.Is(err, slicecontroller.ErrShardNotHeld) {
			t.Errorf("error is %v, want ErrShardNotHeld", err)
		}
	})
}

func TestChanges_HasTheLastChangeOfEachService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, _, _ := startWithWeb(t)
		changed := func(since uint64) []string {
			var names []string
			for _, c := range controller.Changes(since).Services {
				names = append(names, fmt.Sprintf("%s deleted=%t", c.Key.Name, c.Deleted))
			}
			return names
		}
		start := controller.Revision()
		more := controller.Changes(start).More
		if got := changed(start); got != nil {
			t.Errorf("changes without a change: %v", got)
		}
		controller.PutService(slicetest.Service("api"))
		select {
		case <-more:
		default:
			t.Error("More is open after a change")
		}
		controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		advance(time.Second)
		controller.DeleteService(slicetest.Service("api"))
		advance(time.Second)
		if diff := gocmp.Diff([]string{"web deleted=false", "api deleted=true"}, changed(start)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		if got := changed(controller.Revision()); got != nil {
			t.Errorf("changes since now: %v", got)
		}
		if !controller.Changes(controller.Revision() + 1).Lost {
			t.Error("a revision of another process is not lost")
		}
		for i := range 20_000 {
			controller.PutService(slicetest.Service(fmt.Sprint("svc-", i)))
			controller.DeleteService(slicetest.Service(fmt.Sprint("svc-", i)))
		}
		if got := controller.Changes(start); !got.Lost || len(got.Services) > 10_002 {
			t.Errorf("%d changes are kept, lost: %t", len(got.Services), got.Lost)
		}
	})
}

func TestEndpoint_HasThePodItsNodeAndTheSlices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		for _, c := range []struct {
			service, pod string
			want         error
		}{{"none", "web-0", slicecontroller.ErrServiceNotFound}, {"web", "none", slicecontroller.ErrPodNotFound}} {
			if _, err := controller.Endpoint(key(c.service), c.pod); !errors.Is(err, c.want) {
				t.Errorf("%s in %s: %v, want %v", c.pod, c.service, err, c.want)
			}
		}
		facts, err := controller.Endpoint(key("web"), "web-0")
		if err != nil || facts.Candidate.Pod.Name != "web-0" || facts.Pending || !facts.Candidate.NodeKnown || facts.Candidate.Zone != "zone-a" || len(facts.Slices) != 1 {
			t.Errorf("facts are %+v, %v", facts, err)
		}
		cluster.refuseWith(func(pack.Change) error { return errBusy })
		controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		advance(10 * time.Second)
		if facts, _ := controller.Endpoint(key("web"), "web-0"); !facts.Pending {
			t.Error("a failing write is not pending")
		}
	})
}

func TestState_HasTheLastPlan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		name := cluster.onlySlice(t).Name
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3", unreadySince(time.Now())))
		advance(time.Minute)
		began := time.Now()
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3", unreadySince(began.Add(-time.Second)), func(pod *corev1.Pod) {
			pod.Status.Conditions[0].Status = corev1.ConditionTrue
		}))
		advance(time.Second)
		state, _ := controller.State(key("web"))
		want := slicecontroller.LastPlan{
			Time:    began,
			Trigger: slicecontroller.ByPod,
			Latency: time.Second + 2*time.Millisecond,
			Updates: 1,
		}
		if diff := gocmp.Diff(want, state.LastPlan); diff != "" {
			t.Errorf("last plan (-want +got):\n%s", diff)
		}
		if got := state.WriteTimes[name]; !got.Equal(began.Add(2 * time.Millisecond)) {
			t.Errorf("written at %v", got)
		}
	})
}

func TestObserveSliceMetadata_FetchesNewVersionsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		known := webSlice(t, controller)
		seen := func(version string, change func(*metav1.ObjectMeta)) bool {
			meta := known.ObjectMeta.DeepCopy()
			meta.ResourceVersion = version
			if change != nil {
				change(meta)
			}
			return controller.ObserveSliceMetadata(meta)
		}
		foreign := func(meta *metav1.ObjectMeta) { meta.Labels[discoveryv1.LabelManagedBy] = "another-manager" }
		for _, c := range []struct {
			name string
			got  bool
			want bool
		}{
			{"our own write", seen(known.ResourceVersion, nil), false},
			{"a write of another writer", seen("1000", nil), true},
			{"no longer ours", seen("1001", foreign), false},
		} {
			if c.got != c.want {
				t.Errorf("%s: fetch is %t, want %t", c.name, c.got, c.want)
			}
		}
		advance(time.Second)
		if got := cluster.size(); got != 2 {
			t.Errorf("%d slices, want one more, for the slice that is no longer ours", got)
		}
	})
}

func TestRun_DeletesUnmanagedSlicesIfConfigured(t *testing.T) {
	t.Parallel()
	for _, configured := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			controller, cluster := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.DeleteUnmanagedSlices = configured })
			holdAllShards(t, controller)
			controller.PutNode(node("node-a", "zone-a"))
			controller.PutService(slicetest.Service("web"))
			controller.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
			advance(time.Second)
			controller.PutService(slicetest.Service("web", func(s *corev1.Service) { s.Spec.Selector = nil }))
			advance(time.Second)
			if gone := cluster.size() == 0; gone != configured {
				t.Errorf("%d slices are left, DeleteUnmanagedSlices: %t", cluster.size(), configured)
			}
			controller.PutService(slicetest.Service("web"))
			advance(time.Second)
			if got := len(cluster.onlySlice(t).Endpoints); got != 1 {
				t.Errorf("%d endpoints once the selector is back, want 1", got)
			}
		})
	}
}
