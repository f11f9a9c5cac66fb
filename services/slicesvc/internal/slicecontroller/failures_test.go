package slicecontroller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// The cache has the answer of a write: the next sync does not wait for its event, and the event
// causes no sync.
func TestRun_OwnWritesNeedNoWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		cluster.setLag(2 * time.Second)
		for i := 2; i < 5; i++ {
			controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
			advance(100 * time.Millisecond)
			if got := len(cluster.onlySlice(t).Endpoints); got != i+1 {
				t.Errorf("%d endpoints before the event of the last write, want %d", got, i+1)
			}
			if got := len(webSlice(t, controller).Endpoints); got != i+1 {
				t.Errorf("the cache has %d endpoints, want %d", got, i+1)
			}
		}
		advance(20 * time.Second)
		if got := cluster.takeWrites(); got != 3 || cluster.reads > 0 {
			t.Errorf("%d writes and %d reads, want 3 and none", got, cluster.reads)
		}
	})
}

func TestRun_PausedWatchDelaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		resume := cluster.pauseEvents()
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		advance(time.Second)
		cluster.edit(cluster.onlySlice(t).Name, func(slice *discoveryv1.EndpointSlice) {
			slice.Endpoints, slice.Annotations = slice.Endpoints[:1], map[string]string{"note": "keep"}
		})
		controller.PutPod(slicetest.Pod("web-3", "10.1.0.4"))
		advance(time.Second)
		if slice := cluster.onlySlice(t); len(slice.Endpoints) != 4 || slice.Annotations["note"] != "keep" || cluster.reads != 1 {
			t.Errorf("slice is %+v after %d reads, want the edit merged after one read", slice, cluster.reads)
		}
		resume()
		advance(2 * time.Minute)
		if got := cluster.takeWrites(); got != 2 {
			t.Errorf("%d writes, want 2", got)
		}
		if state, _ := controller.State(key("web")); state.History.Failures != 0 || state.History.LastError != "" {
			t.Errorf("history is %+v, want no failure", state.History)
		}
	})
}

func TestRun_ConflictDelaysOnlyItsSlice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		refused := false
		cluster.refuseWith(func(change pack.Change) error {
			if refused || change.Verb != pack.Update {
				return nil
			}
			refused = true
			return fmt.Errorf("update: %w", kube.ErrConflict)
		})
		// 110 more pods: 100 need a new slice, ten go into the old one, and only that update is
		// refused.
		for i := 2; i < 112; i++ {
			controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		advance(5 * time.Second)
		endpoints := map[string]int{}
		cluster.mu.Lock()
		for _, slice := range cluster.slices {
			for _, endpoint := range slice.Endpoints {
				endpoints[endpoint.TargetRef.Name]++
			}
		}
		cluster.mu.Unlock()
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

func TestRun_FailingServiceDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, held := startWithWeb(t)
		log := cluster.decisions
		for _, name := range []string{"failing", "good", "fine"} {
			controller.PutService(slicetest.Service(name))
		}
		cluster.refuseWith(func(change pack.Change) error {
			if change.Slice.Labels[discoveryv1.LabelServiceName] == "failing" {
				panic("no such thing")
			}
			return nil
		})
		controller.PutService(slicetest.Service("failing", selectorOf("x")))
		for range 300 {
			controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
			advance(time.Second)
			controller.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
			advance(time.Second)
		}
		if reported, err := held.reports.last(); err != nil || !reported {
			t.Errorf("the loop reports %v", err)
		}
		if got := describe(webSlice(t, controller)); got != "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a" {
			t.Errorf("web has %q", got)
		}
		failing, _ := controller.State(key("failing"))
		// Delays double from a tenth of a second to a minute: about 18 syncs in ten minutes.
		if got := failing.History.Failures; got < 10 || got > 30 {
			t.Errorf("%d syncs of the failing Service, want between 10 and 30", got)
		}
		if want := "panic: no such thing"; failing.History.LastError != want {
			t.Errorf("last error is %q, want %q", failing.History.LastError, want)
		}
		if diff := cmp.Diff([]string{"WRITE_REFUSED failing"}, testkit.Decisions(log, decisions.WriteRefused)); diff != "" {
			t.Errorf("refusals (-want +got):\n%s", diff)
		}
		written := testkit.Decisions(log, decisions.SlicesWritten)
		if !slices.Contains(written, "SLICES_WRITTEN web") || !slices.Contains(written, "SLICES_WRITTEN good") {
			t.Errorf("written slices: %v", written)
		}
	})
}

func TestRun_ReportsWhenEverythingFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, held := startWithWeb(t)
		advance(2 * time.Second)
		if reported, err := held.reports.last(); err != nil || !reported {
			t.Fatalf("reports %v without a failure", err)
		}
		cluster.refuseWith(func(pack.Change) error { return errBusy })
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		advance(5 * time.Second)
		if _, err := held.reports.last(); err == nil || !strings.Contains(err.Error(), "1 of 1 services fail, shop/web with: busy") {
			t.Errorf("reports %v, want that 1 of 1 services fail", err)
		}
		cluster.refuseWith(nil)
		advance(2 * time.Minute)
		if _, err := held.reports.last(); err != nil {
			t.Errorf("still reports %v", err)
		}
	})
}

func TestRun_TerminatingNamespaceIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		cluster.refuseWith(func(pack.Change) error { return fmt.Errorf("create: %w", kube.ErrNamespaceTerminating) })
		controller.PutService(slicetest.Service("late"))
		advance(time.Minute)
		if state, _ := controller.State(key("late")); state.History.Failures != 0 {
			t.Errorf("history is %+v, want no failure", state.History)
		}
		if got := cluster.takeWrites(); got != 0 {
			t.Errorf("%d writes, want none", got)
		}
	})
}

// Pods of a terminating namespace serve until they are gone. Endpoints that would move to a slice
// that cannot be created stay.
func TestRun_EndpointsStayInATerminatingNamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		controller.PutNode(node("node-a", "zone-a"))
		service := slicetest.Service("web")
		controller.PutService(service)
		for i := range 150 {
			controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		full := slicetest.Slice(service, "web-full", slicetest.Pods(0, 150))
		cluster.storeAsOther(full)
		creates := 0
		cluster.refuseWith(func(change pack.Change) error {
			if change.Verb != pack.Create {
				return nil
			}
			creates++
			return fmt.Errorf("create: %w", kube.ErrNamespaceTerminating)
		})
		holdAllShards(t, controller)
		advance(time.Minute)
		if got := len(cluster.onlySlice(t).Endpoints); got != 150 || creates != 1 {
			t.Errorf("%d of 150 endpoints are left after %d attempts to create a slice, want all after one", got, creates)
		}
	})
}

// As long as the slice with the new ports cannot be written, clients need the slice with the old
// ports.
func TestRun_NothingIsDeletedBeforeItsReplacementIsWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		for i := 2; i < 150; i++ {
			controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		advance(time.Second)
		if got := cluster.size(); got != 2 {
			t.Fatalf("%d slices, want 2", got)
		}
		cluster.takeWrites()
		refused := 0
		cluster.refuseWith(func(change pack.Change) error {
			if change.Verb == pack.Update {
				refused++
				return errBusy
			}
			return nil
		})
		controller.PutService(slicetest.Service("web", func(service *corev1.Service) {
			service.Spec.Ports[0].TargetPort = intstr.FromInt32(9090)
		}))
		for i := 50; i < 150; i++ {
			controller.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		advance(10 * time.Second)
		if got := cluster.takeWrites(); got != 0 || refused == 0 {
			t.Errorf("%d writes while %d updates were refused, want none", got, refused)
		}
		cluster.refuseWith(nil)
		advance(2 * time.Minute)
		if got := len(cluster.onlySlice(t).Endpoints); got != 50 {
			t.Errorf("%d endpoints in the end, want 50", got)
		}
	})
}

// A webhook that shortens slices must not lose an endpoint: the slice that had it stays.
func TestRun_NothingIsDeletedIfItsReplacementIsStoredOtherwise(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t, func(cfg *slicecontroller.Config, _ *slicecontroller.Deps) { cfg.CompactAfter = 5 * time.Second })
		holdAllShards(t, controller)
		putService(controller, "web", 200)
		advance(time.Second)
		for i := range 200 {
			if i%4 != 0 {
				controller.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
				advance(10 * time.Millisecond)
			}
		}
		if cluster.size() < 2 {
			t.Fatal("one slice, so there is nothing to join")
		}
		shortened := 0
		cluster.alter = func(slice *discoveryv1.EndpointSlice) {
			if len(slice.Endpoints) > 30 {
				shortened++
				slice.Endpoints = slice.Endpoints[:30]
			}
		}
		cluster.refuseWith(func(change pack.Change) error {
			if change.Verb != pack.Delete {
				return nil
			}
			for address := range left(change.Slice, cluster.slices) {
				t.Errorf("%s is deleted, and no other slice has %s", change.Slice.Name, address)
			}
			return nil
		})
		advance(2 * time.Minute)
		if shortened == 0 {
			t.Fatal("no write was shortened, so the test shows nothing")
		}
	})
}

// left returns the addresses of a slice that no other slice has.
func left(slice *discoveryv1.EndpointSlice, all map[string]*discoveryv1.EndpointSlice) map[string]bool {
	addresses := map[string]bool{}
	for _, endpoint := range slice.Endpoints {
		addresses[endpoint.Addresses[0]] = true
	}
	for _, other := range all {
		if other.Name != slice.Name {
			for _, endpoint := range other.Endpoints {
				delete(addresses, endpoint.Addresses[0])
			}
		}
	}
	return addresses
}

// throttle refuses and counts all writes, with a Retry-After.
func throttle(seconds int, attempts *int) func(pack.Change) error {
	return func(pack.Change) error {
		*attempts++
		return fmt.Errorf("update: %w", apierrors.NewTooManyRequests("later", seconds))
	}
}

func TestRun_PausesWhileKubeAPIServerThrottles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		seconds int
		most    int // of two workers in a minute
	}{
		"no Retry-After": {seconds: 0, most: 2 * 10 * 60},
		"5 s":            {seconds: 5, most: 2 * (60/5 + 1)},
		"an hour":        {seconds: 3600, most: 2 * (60/10 + 1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				controller, cluster, _ := startWithWeb(t)
				attempts := 0
				cluster.refuseWith(throttle(c.seconds, &attempts))
				for i := range 40 {
					controller.PutService(slicetest.Service(fmt.Sprint("more-", i)))
				}
				advance(time.Minute)
				if attempts == 0 || attempts > c.most {
					t.Errorf("%d attempts in a minute, want at most %d", attempts, c.most)
				}
				cluster.refuseWith(nil)
				advance(2 * time.Minute)
				if got := cluster.size(); got != 41 {
					t.Errorf("%d slices in the end, want 41", got)
				}
			})
		})
	}
}

// A Service that becomes urgent during the pause does not wait for the Services that were refused.
func TestRun_MostUrgentServiceIsFirstAfterThrottling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		attempts := 0
		cluster.refuseWith(throttle(5, &attempts))
		for i := range 40 {
			controller.PutService(slicetest.Service(fmt.Sprint("more-", i), func(service *corev1.Service) { service.Spec.Selector = map[string]string{"app": "more"} }))
		}
		advance(time.Second)
		var written []string
		cluster.refuseWith(func(change pack.Change) error {
			written = append(written, change.Slice.Labels[discoveryv1.LabelServiceName])
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		if result, err := controller.Reconcile(ctx, key("web"), ""); err != nil || len(result.Outcomes) != 1 || result.Outcomes[0].State != slicecontroller.Applied {
			t.Errorf("reconcile: %+v, %v", result, err)
		}
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		if !slices.Contains(written[:2], "web") {
			t.Errorf("the two workers wrote %q after the pause, want web first, because a client asked for it", written)
		}
	})
}

// Four writes run concurrently. When they are throttled, the rest of the plan is not tried.
func TestRun_ThrottlingStopsAPlan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		for i := 2; i < 950; i++ {
			controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		advance(time.Second)
		attempts := 0
		cluster.refuseWith(throttle(5, &attempts))
		controller.PutNode(node("node-a", "zone-b"))
		advance(time.Second)
		if attempts != 4 {
			t.Errorf("%d attempts, want four", attempts)
		}
		state, _ := controller.State(slicecontroller.Key{Namespace: slicetest.Namespace, Name: "web"})
		if state.History.Failures != 1 {
			t.Errorf("history is %+v, want one failure", state.History)
		}
		cluster.refuseWith(nil)
		advance(time.Minute)
		if state, _ := controller.State(key("web")); state.History.Failures != 0 {
			t.Errorf("history is %+v, want no failure in the end", state.History)
		}
	})
}
