package slicecontroller_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestRun_FollowsPods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		for _, step := range []struct {
			name   string
			change func()
			want   string
			writes int
		}{
			{
				name:   "a pod is not ready",
				change: func() { controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready)) },
				want:   "10.1.0.1 zone-a, 10.1.0.2 ready zone-a",
				writes: 1,
			},
			{
				name: "it fails, with no other change",
				change: func() {
					controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }))
				},
				want:   "10.1.0.2 ready zone-a",
				writes: 1,
			},
			{
				name:   "a pod is added",
				change: func() { controller.PutPod(slicetest.Pod("web-2", "10.1.0.3")) },
				want:   "10.1.0.2 ready zone-a, 10.1.0.3 ready zone-a",
				writes: 1,
			},
			{
				name:   "a pod is deleted",
				change: func() { controller.DeletePod(slicetest.Pod("web-1", "10.1.0.2")) },
				want:   "10.1.0.3 ready zone-a",
				writes: 1,
			},
			{
				name: "a pod is put again as it is",
				change: func() {
					controller.PutPod(slicetest.Pod("web-2", "10.1.0.3", func(pod *corev1.Pod) { pod.ResourceVersion = "99" }))
				},
				want: "10.1.0.3 ready zone-a",
			},
			{
				name:   "the node moves to another zone",
				change: func() { controller.PutNode(node("node-a", "zone-b")) },
				want:   "10.1.0.3 ready zone-b",
				writes: 1,
			},
			{
				name:   "the node is deleted",
				change: func() { controller.DeleteNode(node("node-a", "zone-b")) },
				want:   "10.1.0.3 ready zone-b",
			},
			{
				name: "a pod on a node that does not exist",
				change: func() {
					controller.PutPod(slicetest.Pod("web-3", "10.1.0.4", func(pod *corev1.Pod) { pod.Spec.NodeName = "node-z" }))
					controller.PutNode(node("node-a", "zone-b"))
				},
				want: "10.1.0.3 ready zone-b",
			},
			{
				name:   "the node appears",
				change: func() { controller.PutNode(node("node-z", "zone-z")) },
				want:   "10.1.0.3 ready zone-b, 10.1.0.4 ready zone-z",
				writes: 1,
			},
			{
				name:   "the selector changes",
				change: func() { controller.PutService(slicetest.Service("web", selectorOf("other"))) },
				want:   "",
				writes: 1,
			},
			{
				name: "the selector is removed: the slice stays",
				change: func() {
					controller.PutService(slicetest.Service("web", func(s *corev1.Service) { s.Spec.Selector = nil }))
				},
				want: "",
			},
			{
				name:   "the Service is deleted: the garbage collector deletes the slice",
				change: func() { controller.DeleteService(slicetest.Service("web")) },
				want:   "",
			},
		} {
			step.change()
			advance(100 * time.Millisecond)
			if got := describe(cluster.onlySlice(t)); got != step.want {
				t.Errorf("%s: slice has %q, want %q", step.name, got, step.want)
			}
			if got := cluster.takeWrites(); got != step.writes {
				t.Errorf("%s: %d writes, want %d", step.name, got, step.writes)
			}
		}
	})
}

func unreadySince(at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		slicetest.Unready(pod)
		pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at)
	}
}

func lastWrittenAt(at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: at}}}
	}
}

func TestRun_SlicesHaveTheTimeOfTheChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, held := startWithWeb(t)
		expect := func(when, want string) {
			t.Helper()
			advance(10 * time.Second)
			if got := cluster.onlySlice(t).Annotations[corev1.EndpointsLastChangeTriggerTime]; got != want {
				t.Errorf("%s: change time is %q, want %q", when, got, want)
			}
		}
		expect("a new Service", "2026-03-01T12:00:00Z")

		first, second := slicetest.CreationTime().Add(time.Hour), slicetest.CreationTime().Add(2*time.Hour)
		controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", unreadySince(first)))
		expect("a pod that is no longer ready", "2026-03-01T13:00:00Z")

		controller.DeletePod(slicetest.Pod("web-0", "10.1.0.1"))
		expect("a pod deleted at an unknown time", "")

		controller.PutPod(slicetest.Pod("web-1", "10.1.0.9", lastWrittenAt(second)))
		expect("a pod with another address", "2026-03-01T14:00:00Z")

		now := time.Now().UTC().Format(time.RFC3339Nano)
		controller.DeletePod(slicetest.Pod("web-1", "10.1.0.9", func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(slicetest.CreationTime()) }))
		expect("a pod whose deletion was watched", now)

		controller.PutPod(slicetest.Pod("web-1", "10.1.0.2"))
		advance(10 * time.Second)
		cluster.refuseWith(func(pack.Change) error { return errBusy })
		controller.PutPod(slicetest.Pod("web-1", "10.1.0.2", unreadySince(first)))
		advance(10 * time.Second)
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3", unreadySince(second)))
		advance(10 * time.Second)
		cluster.refuseWith(nil)
		advance(time.Minute)
		expect("two changes while writes fail", "2026-03-01T13:00:00Z")

		held.end()
		controller.PutPod(slicetest.Pod("web-3", "10.1.0.4", unreadySince(second)))
		holdAllShards(t, controller)
		expect("a change before the term", "")
	})
}

// hintedEndpoints counts the endpoints with hints.
func hintedEndpoints(cluster *fakeCluster) int {
	cluster.mu.Lock()
	defer cluster.mu.Unlock()
	count := 0
	for _, slice := range cluster.slices {
		for i := range slice.Endpoints {
			if slice.Endpoints[i].Hints != nil {
				count++
			}
		}
	}
	return count
}

func TestRun_NodesChangeHints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		holdAllShards(t, controller)
		auto := func(service *corev1.Service) {
			service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
		}
		controller.PutService(slicetest.Service("web", auto))
		controller.PutNode(node("node-a", "zone-a"))
		controller.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
		controller.PutPod(slicetest.Pod("web-1", "10.1.0.2", func(pod *corev1.Pod) { pod.Spec.NodeName = "node-b" }))
		advance(time.Second)
		if state, _ := controller.State(key("web")); state.TopologyProblem == "" || state.Topology != "Auto" || hintedEndpoints(cluster) > 0 {
			t.Errorf("with one zone: %d hints, topology %q, problem %q", hintedEndpoints(cluster), state.Topology, state.TopologyProblem)
		}
		controller.PutNode(node("node-b", "zone-b"))
		advance(time.Second)
		if state, _ := controller.State(key("web")); state.TopologyProblem != "" || hintedEndpoints(cluster) != 2 {
			t.Errorf("with two zones: %d hints, problem %q", hintedEndpoints(cluster), state.TopologyProblem)
		}
		controller.DeleteNode(node("node-b", "zone-b"))
		advance(time.Second)
		if hintedEndpoints(cluster) != 0 {
			t.Errorf("%d hints after the zone is gone", hintedEndpoints(cluster))
		}
	})
}

func TestRun_WritesOnlyDuringATerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, held := startWithWeb(t)
		held.end()
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		controller.PutService(slicetest.Service("new"))
		advance(time.Minute)
		if got := cluster.takeWrites(); got != 0 {
			t.Errorf("%d writes without a term, want none", got)
		}
		if got := controller.QueueLength(); got != 0 {
			t.Errorf("queue holds %d without a term, want none", got)
		}
		preview, _ := controller.Preview(key("web"))
		if len(preview.Plan.Changes) != 1 || preview.Plan.Changes[0].Added != 1 {
			t.Errorf("a standby plans %+v, want one endpoint added", preview.Plan)
		}
		holdAllShards(t, controller)
		advance(100 * time.Millisecond)
		if got := cluster.takeWrites(); got != 2 {
			t.Errorf("%d writes in the next term, want 2", got)
		}
	})
}
