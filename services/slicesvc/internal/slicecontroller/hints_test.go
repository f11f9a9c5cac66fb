package slicecontroller_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// hinted counts the endpoints of a Service that have a hint.
func hinted(api *apiserver) int {
	api.mu.Lock()
	defer api.mu.Unlock()
	count := 0
	for _, slice := range api.slices {
		for i := range slice.Endpoints {
			if slice.Endpoints[i].Hints != nil {
				count++
			}
		}
	}
	return count
}

func TestRun_NodesChangeHintsOfThoseWhoDependOnThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api := start(t)
		lead(t, e)
		auto := func(service *corev1.Service) {
			service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
		}
		e.PutService(slicetest.Service("web", auto))
		e.PutNode(node("node-a", "zone-a"))
		e.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
		e.PutPod(slicetest.Pod("web-1", "10.1.0.2", func(pod *corev1.Pod) { pod.Spec.NodeName = "node-b" }))
		settle(time.Second)
		if state, _ := e.State(key("web")); state.TopologyProblem == "" || state.Topology != "Auto" || hinted(api) > 0 {
			t.Errorf("with one zone: %d hints, topology %q, problem %q", hinted(api), state.Topology, state.TopologyProblem)
		}
		e.PutNode(node("node-b", "zone-b"))
		settle(time.Second)
		if state, _ := e.State(key("web")); state.TopologyProblem != "" || hinted(api) != 2 {
			t.Errorf("with two zones: %d hints, problem %q", hinted(api), state.TopologyProblem)
		}
		e.DeleteNode(node("node-b", "zone-b"))
		settle(time.Second)
		if hinted(api) != 0 {
			t.Errorf("%d hints after a zone went", hinted(api))
		}
	})
}
