package slicecontroller_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func node(name, zone string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func key(name string) slicecontroller.Key {
	return slicecontroller.Key{Namespace: slicetest.Namespace, Name: name}
}

// shop fills an engine with Service web and two pods of it, and lets it work.
func shop(t *testing.T) (*slicecontroller.Engine, *apiserver, term) {
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
