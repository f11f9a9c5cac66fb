package slicecontroller_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
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
				advance(10 * time.Millisecond)
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
				advance(10 * time.Millisecond)
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

// kube-apiserver refuses what a compaction writes. It is tried again with growing pauses, and
// delays no change of the Service.
func TestRun_RefusedCompactionIsTriedEverMoreSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CompactAfter = 5 * time.Second })
		controller.PutNode(node("node-a", "zone-a"))
		halfEmpty(controller, cluster, "web")
		advance(time.Second)
		refused := 0
		cluster.refuseWith(func(change pack.Change) error {
			if change.Reason == pack.Compacted {
				refused++
				return errDenied
			}
			return nil
		})
		holdAllShards(t, controller)
		advance(time.Hour)
		if refused < 60 || refused > 80 {
			t.Errorf("%d refused writes in an hour, want about one a minute", refused)
		}
		controller.PutPod(slicetest.Pod("web-0", slicetest.Address(0), labelledApp("web"), slicetest.Unready))
		advance(10 * time.Millisecond)
		if cluster.readyAt(slicetest.Address(0)) {
			t.Error("a Pod is still ready 10 ms after it was not")
		}
		cluster.refuseWith(nil)
		advance(2 * time.Minute)
		if got := cluster.size(); got != 1 {
			t.Errorf("%d slices after writes are accepted, want one", got)
		}
	})
}

// A slice that took endpoints is written once more, a second after the other slice is gone. The
// next step begins only then.
func TestRun_TakersAreWrittenOnceMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CompactAfter = 5 * time.Second })
		controller.PutNode(node("node-a", "zone-a"))
		halfEmpty(controller, cluster, "web")
		advance(time.Second)
		holdAllShards(t, controller)
		advance(5500 * time.Millisecond)
		if got, want := cluster.listWrites(), []string{"update web-1", "delete web-0"}; !slices.Equal(got, want) {
			t.Fatalf("writes %q, want %q", got, want)
		}
		advance(400 * time.Millisecond)
		if got := cluster.listWrites(); len(got) > 0 {
			t.Fatalf("writes %q half a second after the deletion, want none: Cilium would see them in one batch", got)
		}
		advance(2 * time.Second)
		if got, want := cluster.listWrites(), []string{"update web-1"}; !slices.Equal(got, want) {
			t.Fatalf("writes %q a second later, want %q", got, want)
		}
		if pack.TookEndpointsLately(cluster.onlySlice(t)) {
			t.Error("the slice is still marked")
		}
		advance(time.Hour)
		if got := cluster.listWrites(); len(got) > 0 {
			t.Errorf("writes %q afterwards, want none", got)
		}
	})
}

// The leader of the shard changes in the middle of a compaction, and the next one does not compact.
func TestRun_TakersAreWrittenOnceMoreByTheNextLeader(t *testing.T) {
	t.Parallel()
	for name, deleted := range map[string]bool{"before the deletion": false, "after the deletion": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				controller, cluster := start(t)
				controller.PutNode(node("node-a", "zone-a"))
				halfEmpty(controller, cluster, "web")
				cluster.edit("web-1", func(slice *discoveryv1.EndpointSlice) {
					slice.Annotations = map[string]string{pack.TookEndpoints: "true"}
					slice.Endpoints = append(slice.Endpoints, cluster.slices["web-0"].Endpoints...)
				})
				if deleted {
					cluster.delete("web-0")
				}
				advance(time.Second)
				holdAllShards(t, controller)
				advance(20 * time.Second)
				want := []string{"delete web-0", "update web-1"}
				if deleted {
					want = want[1:]
				}
				if got := cluster.listWrites(); !slices.Equal(got, want) {
					t.Errorf("writes %q, want %q", got, want)
				}
				if slice := cluster.onlySlice(t); pack.TookEndpointsLately(slice) || len(slice.Endpoints) != 2 {
					t.Errorf("slice is %v", slice)
				}
			})
		})
	}
}

// A Service that changes all the time does not delay the second write.
func TestRun_TakersOfABusyServiceAreWrittenOnceMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		controller.PutNode(node("node-a", "zone-a"))
		halfEmpty(controller, cluster, "web")
		cluster.edit("web-1", func(slice *discoveryv1.EndpointSlice) {
			slice.Annotations = map[string]string{pack.TookEndpoints: "true"}
		})
		advance(time.Second)
		holdAllShards(t, controller)
		for i := range 20 {
			change := []func(*corev1.Pod){labelledApp("web"), slicetest.Unready}[:1+i%2]
			controller.PutPod(slicetest.Pod("web-0", slicetest.Address(0), change...))
			advance(500 * time.Millisecond)
		}
		for _, slice := range cluster.slices {
			if pack.TookEndpointsLately(slice) {
				t.Errorf("slice %s was not written once more within ten seconds", slice.Name)
			}
		}
	})
}

// kube-apiserver refuses another slice of the Service for ever, so that the Service is never quiet.
func TestRun_TakersAreWrittenOnceMoreBesideARefusedSlice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		controller.PutNode(node("node-a", "zone-a"))
		halfEmpty(controller, cluster, "web")
		cluster.edit("web-1", func(slice *discoveryv1.EndpointSlice) {
			slice.Annotations = map[string]string{pack.TookEndpoints: "true"}
		})
		cluster.refuseWith(func(change pack.Change) error {
			if change.Slice.Name == "web-0" {
				return errBusy
			}
			return nil
		})
		controller.PutPod(slicetest.Pod("web-0", slicetest.Address(0), labelledApp("web"), slicetest.Unready))
		advance(time.Second)
		holdAllShards(t, controller)
		advance(3 * time.Minute)
		if got, want := cluster.listWrites(), []string{"update web-1"}; !slices.Equal(got, want) {
			t.Errorf("writes %q while web-0 is refused, want %q", got, want)
		}
	})
}
