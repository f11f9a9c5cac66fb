package slicecontroller_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestRun_CompactsAQuietService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CompactAfter = 5 * time.Second })
		holdAllShards(t, controller)
		putService(controller, "web", 1000)
		advance(time.Second)
		cluster.takeWrites()
		for i := range 1000 {
			if i%10 != 0 {
				controller.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
				advance(10 * time.Millisecond) // one by one, so that no plan joins slices that it writes anyway
			}
		}
		advance(4 * time.Second)
		if before := cluster.size(); before < 2 {
			t.Fatalf("%d slices before, so there is nothing to compact", before)
		}
		advance(20 * time.Second)
		if got := len(cluster.endpoints(t)); cluster.size() != 1 || got != 100 {
			t.Errorf("%d slices with %d endpoints, want one with 100", cluster.size(), got)
		}
		state, _ := controller.State(key("web"))
		if state.LastPlan.Trigger != slicecontroller.ByCompaction {
			t.Errorf("last plan is %+v", state.LastPlan)
		}
		cluster.takeWrites()
		advance(time.Hour)
		if got := cluster.takeWrites(); got != 0 {
			t.Errorf("%d writes afterwards", got)
		}
	})
}

// A cluster with many half-empty slices is not rewritten at once.
func TestRun_CompactionHasOneBudgetForAllServices(t *testing.T) {
	t.Parallel()
	const services = 300
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CompactAfter = 5 * time.Second })
		controller.PutNode(node("node-a", "zone-a"))
		for i := range services {
			service := slicetest.Service(fmt.Sprint("web-", i), selectorOf(fmt.Sprint("web-", i)))
			controller.PutService(service)
			for pod := range 2 {
				name := fmt.Sprint(service.Name, "-", pod)
				controller.PutPod(slicetest.Pod(name, slicetest.Address(pod), labelledApp(service.Name)))
				half := slicetest.Slice(service, name, []desired.Candidate{slicetest.Candidate(slicetest.Pod(name, slicetest.Address(pod)))})
				cluster.storeAsOther(half)
			}
		}
		advance(time.Second)
		holdAllShards(t, controller)
		advance(5 * time.Second)
		if got := cluster.takeWrites(); got != 0 || cluster.size() != 2*services {
			t.Fatalf("%d writes and %d slices, want none before the Services are quiet", got, cluster.size())
		}
		most := 0
		for range 60 {
			advance(time.Second)
			most = max(most, cluster.takeWrites())
		}
		if got := cluster.size(); most > 50 || got != services {
			t.Errorf("up to %d writes a second, and %d slices after a minute; want few and %d", most, got, services)
		}
	})
}

// A Service is quiet as long as nothing is written for it, whatever causes its syncs.
func TestRun_SyncWithoutWritesDoesNotDelayCompaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CompactAfter = 5 * time.Second })
		holdAllShards(t, controller)
		putService(controller, "web", 300)
		advance(time.Second)
		for i := range 300 {
			if i%3 > 0 {
				controller.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i), labelledApp("web")))
				advance(10 * time.Millisecond) // one by one, so that no plan joins slices that it writes anyway
			}
		}
		advance(time.Second)
		scattered := cluster.size()
		for range 6 {
			if _, err := controller.Reconcile(t.Context(), key("web"), ""); err != nil {
				t.Fatal(err)
			}
			advance(time.Second)
		}
		if got := cluster.size(); scattered < 2 || got != 1 {
			t.Errorf("%d slices for 100 endpoints after they were quiet for 5s, and %d before", got, scattered)
		}
	})
}

// halfEmpty stores two slices of a Service where one is enough, as another writer left them.
func halfEmpty(controller *slicecontroller.Controller, cluster *fakeCluster, name string) {
	service := slicetest.Service(name, selectorOf(name))
	controller.PutService(service)
	for pod := range 2 {
		object := slicetest.Pod(fmt.Sprint(name, "-", pod), slicetest.Address(pod), labelledApp(name))
		controller.PutPod(object)
		cluster.storeAsOther(slicetest.Slice(service, object.Name, []desired.Candidate{slicetest.Candidate(object)}))
	}
}

// Many Services are due for compaction, and one of them has begun. A change of another Service is
// next, even if it is not urgent.
func TestRun_CompactionGoesBeforeNoChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) {
			cfg.CompactAfter, cfg.Workers = 5*time.Second, 1
		})
		controller.PutNode(node("node-a", "zone-a"))
		for i := range 4 {
			halfEmpty(controller, cluster, fmt.Sprint("web-", i))
		}
		advance(time.Second)
		holdAllShards(t, controller)
		advance(4 * time.Second)
		cluster.setLatency(time.Second)
		advance(1500 * time.Millisecond)
		if got := cluster.begunWrites(); got != 1 {
			t.Fatalf("%d writes have begun, want one of a compaction", got)
		}
		controller.PutService(slicetest.Service("web-3", selectorOf("web-3"), func(service *corev1.Service) {
			service.Labels = map[string]string{"team": "a"}
			service.ResourceVersion = "2"
		}))
		advance(20 * time.Second)
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		var order []string
		for _, write := range cluster.writes {
			_, slice, _ := strings.Cut(write, " ")
			order = append(order, slice[:len("web-0")])
		}
		if order = slices.Compact(order); len(order) < 4 || order[0] != "web-3" && order[1] != "web-3" {
			t.Errorf("Services were written in the order %q, want web-3 next after the running compaction", order)
		}
	})
}

// A change of the Service ends its compaction, however long a write takes.
func TestRun_AChangeInterruptsTheCompactionOfItsService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) {
			cfg.CompactAfter, cfg.MaxEndpointsPerSlice = 5*time.Second, 10
		})
		controller.PutNode(node("node-a", "zone-a"))
		service := slicetest.Service("web")
		controller.PutService(service)
		for i := range 10 { // ten slices with one endpoint
			object := slicetest.Pod(fmt.Sprint("web-", i), slicetest.Address(i))
			controller.PutPod(object)
			cluster.storeAsOther(slicetest.Slice(service, object.Name, []desired.Candidate{slicetest.Candidate(object)}))
		}
		advance(time.Second)
		holdAllShards(t, controller)
		advance(4 * time.Second)
		cluster.setLatency(time.Second)
		advance(1500 * time.Millisecond) // the compaction has begun
		if got := cluster.begunWrites(); got != 1 {
			t.Fatalf("%d writes of the compaction have begun, want one", got)
		}
		controller.PutPod(slicetest.Pod("web-9", slicetest.Address(9), slicetest.Unready))
		advance(5 * time.Second) // the write that runs, and the change; the compaction would take longer
		ready := false
		cluster.mu.Lock()
		for _, slice := range cluster.slices {
			ready = ready || strings.Contains(describe(slice), slicetest.Address(9)+" ready")
		}
		writes := cluster.writes
		cluster.mu.Unlock()
		if ready {
			t.Errorf("the Pod that is not ready is still ready after writes %q", writes)
		}
		advance(2 * time.Minute)
		if got := len(cluster.endpoints(t)); got != 10 || cluster.size() != 1 {
			t.Errorf("%d slices with %d endpoints in the end, want one with ten", cluster.size(), got)
		}
	})
}
