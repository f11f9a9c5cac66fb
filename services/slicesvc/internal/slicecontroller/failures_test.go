package slicecontroller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/planned"
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
			if refused || change.Verb != planned.Update {
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
		for i := range 100 {
			controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		cluster.storeAsOther(slicetest.Slice(service, "web-full", slicetest.Pods(0, 100), func(slice *discoveryv1.EndpointSlice) {
			slice.OwnerReferences[0].UID = "an-earlier-service"
		}))
		creates := 0
		cluster.refuseWith(func(change pack.Change) error {
			if change.Verb != planned.Create {
				return nil
			}
			creates++
			return fmt.Errorf("create: %w", kube.ErrNamespaceTerminating)
		})
		holdAllShards(t, controller)
		advance(time.Minute)
		if got := len(cluster.onlySlice(t).Endpoints); got != 100 || creates != 1 {
			t.Errorf("%d of 100 endpoints are left after %d attempts to create a slice, want all after one", got, creates)
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
			if change.Verb != planned.Delete {
				refused++
				return errBusy
			}
			return nil
		})
		controller.PutService(slicetest.Service("web", func(service *corev1.Service) {
			service.Spec.Ports[0].TargetPort = intstr.FromInt32(9090)
		}))
		left := 2
		for i := 2; i < 150; i++ { // each slice keeps some, in whatever order they were placed
			if i%3 == 0 {
				left++
				continue
			}
			controller.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		advance(10 * time.Second)
		if got := cluster.takeWrites(); got != 0 || refused == 0 {
			t.Errorf("%d writes while %d replacements were refused, want none", got, refused)
		}
		cluster.refuseWith(nil)
		advance(2 * time.Minute)
		if got := len(cluster.endpoints(t)); got != left {
			t.Errorf("%d endpoints in the end, want %d", got, left)
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
		cluster.alterWith(func(slice *discoveryv1.EndpointSlice) {
			if len(slice.Endpoints) > 30 {
				shortened++
				slice.Endpoints = slice.Endpoints[:30]
			}
		})
		cluster.refuseWith(func(change pack.Change) error {
			if change.Verb != planned.Delete {
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

var errDenied = fmt.Errorf("create: %w", apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "web", errors.New("exceeded quota")))

func dualStack(service *corev1.Service) {
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	service.Spec.Ports[0].TargetPort = intstr.FromString("http")
}

// putDualStack puts a Pod with an address of both families and a port http. Its number is at most
// 250.
func putDualStack(controller *slicecontroller.Controller, number int, port int32, changes ...func(*corev1.Pod)) {
	controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", number), slicetest.Address(number), append(changes, func(pod *corev1.Pod) {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("fd00::%x", number+1)})
		pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: port, Protocol: corev1.ProtocolTCP}}}}
	})...))
}

// A refused family delays nothing of the other one: no change of an endpoint, no deletion of a
// slice, and no change of the ports, although a quota allows no new slice.
func TestRun_RefusedFamilyDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		controller.PutNode(node("node-a", "zone-a"))
		controller.PutService(slicetest.Service("web", dualStack))
		controller.PutService(slicetest.Service("other"))
		refused := 0
		full := false
		cluster.refuseWith(func(change pack.Change) error {
			if change.Slice.AddressType != discoveryv1.AddressTypeIPv6 && (!full || change.Verb != planned.Create) {
				return nil
			}
			refused++
			return errDenied
		})
		for i := range 8 {
			putDualStack(controller, i, 8080)
		}
		putDualStack(controller, 8, 9090)
		holdAllShards(t, controller)
		advance(time.Hour)
		// Two slices are refused, each about once a minute in the end.
		if refused < 2*60 || refused > 2*80 {
			t.Errorf("%d refused writes in an hour", refused)
		}
		full, refused = true, 0
		for i := range 20 {
			ready := i%2 == 1
			putDualStack(controller, 8, 9090, func(pod *corev1.Pod) {
				if !ready {
					slicetest.Unready(pod)
				}
			})
			controller.PutService(slicetest.Service("other", func(service *corev1.Service) { service.Labels = map[string]string{"round": fmt.Sprint(i)} }))
			advance(10 * time.Millisecond)
			if got := cluster.readyAt(slicetest.Address(8)); got != ready {
				t.Fatalf("change %d: ready is %t 10 ms after it became %t", i, got, ready)
			}
			if got := slicesOf(t, controller, "other")[0].Labels["round"]; got != fmt.Sprint(i) {
				t.Fatalf("change %d: another Service has label %s", i, got)
			}
		}
		if refused > 4 {
			t.Errorf("%d refused writes during 20 changes of another family", refused)
		}
		for i := range 8 {
			controller.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		advance(100 * time.Millisecond)
		if got := cluster.contentsOf("web"); got != "9090 10.1.0.9" {
			t.Errorf("slices are %q after Pods are gone", got)
		}
		controller.PutService(slicetest.Service("web", dualStack, func(service *corev1.Service) { service.Spec.Ports[0].TargetPort = intstr.FromInt32(7070) }))
		advance(10 * time.Millisecond)
		if got := cluster.contentsOf("web"); got != "7070 10.1.0.9" {
			t.Errorf("slices are %q after the port has changed", got)
		}
		state, _ := controller.State(key("web"))
		if state.History.Failures == 0 || !strings.Contains(state.History.LastError, "exceeded quota") || len(state.Failed) != 1 {
			t.Errorf("history is %+v with %d failed slices, want the refusal", state.History, len(state.Failed))
		}
		cluster.refuseWith(nil)
		advance(2 * time.Minute)
		state, _ = controller.State(key("web"))
		if got := cluster.size(); got != 3 || state.History.Failures != 0 || len(state.Failed) != 0 {
			t.Errorf("%d slices and history %+v in the end, want 3 and no failure", got, state.History)
		}
	})
}

// A slice that is refused with new ports must not keep endpoints that are gone.
func TestRun_RefusedPortsKeepNoOldEndpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		controller.PutNode(node("node-a", "zone-a"))
		controller.PutService(slicetest.Service("web", dualStack, func(service *corev1.Service) { service.Spec.IPFamilies = service.Spec.IPFamilies[:1] }))
		putDualStack(controller, 0, 8080)
		holdAllShards(t, controller)
		advance(time.Second)
		cluster.refuseWith(func(change pack.Change) error {
			if len(change.Slice.Ports) > 0 && *change.Slice.Ports[0].Port == 9090 {
				return errDenied
			}
			return nil
		})
		controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }))
		putDualStack(controller, 1, 9090)
		advance(time.Second)
		if got := cluster.contentsOf("web"); got != "" {
			t.Errorf("slices are %q, want none with the endpoint that is gone", got)
		}
		cluster.refuseWith(nil)
		advance(2 * time.Minute)
		if got := cluster.contentsOf("web"); got != "9090 10.1.0.2" {
			t.Errorf("slices are %q in the end", got)
		}
	})
}

// A write that is stored without some endpoints is tried again with growing pauses. It delays no
// other change of the slice.
func TestRun_WriteStoredOtherwise(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		cluster.alterWith(func(slice *discoveryv1.EndpointSlice) {
			slice.Endpoints = slice.Endpoints[:min(len(slice.Endpoints), 60)]
		})
		putService(controller, "web", 75)
		holdAllShards(t, controller)
		advance(time.Hour)
		if got := len(webSlice(t, controller).Endpoints); got != 60 {
			t.Errorf("the cache has %d endpoints, want the 60 that are stored", got)
		}
		state, _ := controller.State(key("web"))
		if want := "15 of its addresses are missing"; !strings.Contains(state.History.LastError, want) || state.History.Failures == 0 {
			t.Errorf("history is %+v, want that %s", state.History, want)
		}
		if got := cluster.takeWrites(); got < 60 || got > 80 {
			t.Errorf("%d writes in an hour, want about one a minute", got)
		}
		for i := range 10 {
			ready := i%2 == 1
			controller.PutPod(slicetest.Pod("web-0", slicetest.Address(0), labelledApp("web"), func(pod *corev1.Pod) {
				if !ready {
					slicetest.Unready(pod)
				}
			}))
			advance(10 * time.Millisecond)
			if got := cluster.readyAt(slicetest.Address(0)); got != ready {
				t.Fatalf("change %d: ready is %t 10 ms after it became %t", i, got, ready)
			}
		}
		cluster.alterWith(nil)
		advance(2 * time.Minute)
		state, _ = controller.State(key("web"))
		if got := len(cluster.endpoints(t)); got != 75 || state.History.Failures != 0 {
			t.Errorf("%d endpoints and history %+v in the end, want 75 and no failure", got, state.History)
		}
	})
}

// A policy stores each slice under another managed-by label. A new slice is deleted and created
// again with growing pauses, however late the watch is and however often Pods change. So is one
// that cannot be deleted. A slice that an update loses stays.
func TestRun_SliceStoredUnderAnotherLabel(t *testing.T) {
	t.Parallel()
	for name, lag := range map[string]time.Duration{"prompt watch": 500 * time.Microsecond, "late watch": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				controller, cluster := start(t)
				relabel := func(slice *discoveryv1.EndpointSlice) { slice.Labels[discoveryv1.LabelManagedBy] = "policy" }
				creations := func() (n int) {
					for _, write := range cluster.listWrites() {
						if strings.HasPrefix(write, "create") {
							n++
						}
					}
					return n
				}
				cluster.setLag(lag)
				cluster.alterWith(relabel)
				putService(controller, "web", 3)
				holdAllShards(t, controller)
				advance(time.Hour)
				if got := creations(); got < 60 || got > 80 || cluster.size() != 0 {
					t.Errorf("%d creations in an hour and %d slices left, want about one a minute and none", got, cluster.size())
				}
				state, _ := controller.State(key("web"))
				if want := `its label endpointslice.kubernetes.io/managed-by is "policy"`; !strings.Contains(state.History.LastError, want) || len(state.Failed) != 1 {
					t.Errorf("history is %+v with %d failed slices, want that %s", state.History, len(state.Failed), want)
				}
				flip := func() {
					for i := range 100 {
						controller.PutPod(slicetest.Pod("web-0", slicetest.Address(0), labelledApp("web"), func(pod *corev1.Pod) {
							if i%2 == 0 {
								slicetest.Unready(pod)
							}
						}))
						advance(100 * time.Millisecond)
					}
				}
				if flip(); creations() > 12 {
					t.Error("more than one creation a second while Pods change")
				}
				cluster.refuseWith(func(change pack.Change) error {
					if change.Verb == planned.Delete {
						return errDenied
					}
					return nil
				})
				advance(time.Hour)
				if flip(); cluster.size() != 1 {
					t.Errorf("%d slices although the first one cannot be deleted", cluster.size())
				}
				cluster.refuseWith(nil)
				cluster.alterWith(nil)
				advance(2 * time.Minute)
				state, _ = controller.State(key("web"))
				if cluster.size() != 1 || len(webSlice(t, controller).Endpoints) != 3 || state.History.Failures != 0 {
					t.Errorf("%d slices and history %+v without the policy, want one and no failure", cluster.size(), state.History)
				}

				former := cluster.onlySlice(t).Name
				cluster.alterWith(relabel)
				controller.PutPod(slicetest.Pod("web-1", slicetest.Address(1), labelledApp("web"), slicetest.Unready))
				advance(time.Hour)
				if got := creations(); got > 80 || cluster.size() != 1 || cluster.onlySlice(t).Name != former {
					t.Errorf("%d creations and slices %v after an update lost a slice, want that one alone", got, cluster.contents())
				}
				cluster.alterWith(nil)
				advance(2 * time.Minute)
				if got := len(webSlice(t, controller).Endpoints); got != 3 || cluster.size() != 2 {
					t.Errorf("%d endpoints and %d slices in the end, want 3 in a new slice beside the lost one", got, cluster.size())
				}
			})
		})
	}
}

// An update is denied because of a Pod that it adds. What it changes of the other endpoints is
// written all the same.
func TestRun_DeniedEndpointKeepsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		const bad = "10.1.0.99"
		var denied atomic.Int64
		cluster.refuseWith(func(change pack.Change) error {
			for i := range change.Slice.Endpoints {
				if change.Slice.Endpoints[i].Addresses[0] == bad {
					denied.Add(1)
					return errDenied
				}
			}
			return nil
		})
		controller.PutPod(slicetest.Pod("web-9", bad))
		advance(10 * time.Second)
		for i := range 10 {
			ready := i%2 == 1
			controller.PutPod(slicetest.Pod("web-1", "10.1.0.2", func(pod *corev1.Pod) {
				if !ready {
					slicetest.Unready(pod)
				}
			}))
			advance(1100 * time.Millisecond)
			if got := cluster.readyAt("10.1.0.2"); got != ready {
				t.Fatalf("change %d: ready is %t a second after it became %t", i, got, ready)
			}
		}
		controller.DeletePod(slicetest.Pod("web-0", "10.1.0.1"))
		advance(1100 * time.Millisecond)
		if got := describe(cluster.onlySlice(t)); got != "10.1.0.2 ready zone-a" {
			t.Errorf("slice has %q after a Pod is gone", got)
		}
		denied.Store(0)
		advance(time.Hour)
		if got := denied.Load(); got > 80 {
			t.Errorf("%d denied writes in an hour, want growing pauses", got)
		}
		if state, _ := controller.State(key("web")); !strings.Contains(state.History.LastError, "exceeded quota") {
			t.Errorf("history is %+v, want the denial", state.History)
		}
		cluster.refuseWith(nil)
		advance(2 * time.Minute)
		if got := describe(cluster.onlySlice(t)); got != "10.1.0.2 ready zone-a, "+bad+" ready zone-a" {
			t.Errorf("slice has %q in the end", got)
		}
	})
}

// An admission webhook answers 429 for some Services. It is no overload of kube-apiserver: neither
// other Services nor another family of the same Service wait.
func TestRun_ThrottlingWebhookDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		var refused atomic.Int64
		cluster.refuseWith(func(change pack.Change) error {
			if change.Slice.Labels[discoveryv1.LabelServiceName] == "web" && change.Slice.AddressType != discoveryv1.AddressTypeIPv6 {
				return nil
			}
			refused.Add(1)
			return fmt.Errorf("create: %w", apierrors.NewTooManyRequests(`admission webhook "quota.example" denied the request: later`, 10))
		})
		for i := range 20 {
			controller.PutService(slicetest.Service(fmt.Sprint("refused-", i), selectorOf("x")))
		}
		controller.PutService(slicetest.Service("web", dualStack))
		putDualStack(controller, 2, 8080)
		advance(time.Minute)
		for i := range 40 {
			ready := i%2 == 1
			putDualStack(controller, 2, 8080, func(pod *corev1.Pod) {
				if !ready {
					slicetest.Unready(pod)
				}
			})
			advance(50 * time.Millisecond)
			if got := cluster.readyAt(slicetest.Address(2)); got != ready {
				t.Fatalf("change %d: ready is %t 50 ms after it became %t", i, got, ready)
			}
		}
		refused.Store(0)
		advance(time.Hour)
		if got := refused.Load(); got > 21*80 {
			t.Errorf("%d refused writes of 21 slices in an hour, want about one a minute for each", got)
		}
	})
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

// A Service gets a named port, which one of its Pods has elsewhere, and kube-apiserver refuses the
// slice for that Pod: it keeps its endpoint in the former slice.
func TestRun_RefusedPortsOfSomePodsLoseNoEndpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		controller.PutNode(node("node-a", "zone-a"))
		putPort := func(port intstr.IntOrString) {
			controller.PutService(slicetest.Service("web", func(service *corev1.Service) { service.Spec.Ports[0].TargetPort = port }))
		}
		putPort(intstr.FromInt32(8080))
		for number, port := range []int32{8080, 9090, 8080} {
			putDualStack(controller, number, port)
		}
		holdAllShards(t, controller)
		advance(time.Second)
		cluster.refuseWith(func(change pack.Change) error {
			if len(change.Slice.Ports) > 0 && *change.Slice.Ports[0].Port == 9090 {
				return errDenied
			}
			return nil
		})
		putPort(intstr.FromString("http"))
		advance(time.Minute)
		if got, want := cluster.contentsOf("web"), "8080 10.1.0.1 10.1.0.2 10.1.0.3"; got != want {
			t.Errorf("slices are %q while the new one is refused, want %q", got, want)
		}
		cluster.refuseWith(nil)
		advance(2 * time.Minute)
		if got, want := cluster.contentsOf("web"), "8080 10.1.0.1 10.1.0.3; 9090 10.1.0.2"; got != want {
			t.Errorf("slices are %q in the end, want %q", got, want)
		}
	})
}
