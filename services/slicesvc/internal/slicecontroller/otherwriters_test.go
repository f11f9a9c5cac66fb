package slicecontroller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestRun_RevertsChangesOfAnotherWriter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, cluster, _ := startWithWeb(t)
		const want = "10.1.0.1 ready zone-a, 10.1.0.2 ready zone-a"
		for name, change := range map[string]func(name string){
			"edited": func(name string) {
				cluster.edit(name, func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[:1] })
			},
			"relabelled": func(name string) { cluster.edit(name, func(s *discoveryv1.EndpointSlice) { s.Labels["a"] = "b" }) },
			"deleted":    cluster.delete,
		} {
			change(cluster.onlySlice(t).Name)
			advance(100 * time.Millisecond)
			if got := describe(cluster.onlySlice(t)); got != want {
				t.Errorf("%s: slice has %q, want %q", name, got, want)
			}
			if got := cluster.takeWrites(); got != 1 {
				t.Errorf("%s: %d writes, want 1", name, got)
			}
			advance(time.Minute) // changes in quick succession are contention
		}
	})
}

// An event during a sync may or may not be of a write of that sync. Here another writer deletes a
// slice while another slice of the Service is being written.
func TestRun_DetectsAnotherWriterDuringASync(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		for i := 2; i < 150; i++ {
			controller.PutPod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
		}
		advance(time.Second)
		deleted := false
		cluster.refuseWith(func(change pack.Change) error {
			for name := range cluster.slices {
				if !deleted && name != change.Slice.Name {
					deleted = true
					cluster.remove(name)
				}
			}
			return nil
		})
		controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
		advance(time.Second)
		if got := cluster.size(); !deleted || got != 2 {
			t.Errorf("%d slices, want the deleted slice to be replaced", got)
		}
	})
}

func TestRun_SliceWithAnotherManagerIsReplacedUnderAnotherName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		foreign := cluster.onlySlice(t).Name
		cluster.edit(foreign, func(slice *discoveryv1.EndpointSlice) { slice.Labels[discoveryv1.LabelManagedBy] = "another-manager" })
		advance(100 * time.Millisecond)
		state, _ := controller.State(key("web"))
		if len(state.Slices) != 1 || state.Slices[0].Name == foreign {
			t.Errorf("slices are %v, want one that is not %s", state.Slices, foreign)
		}
		if got := cluster.takeWrites(); got != 1 {
			t.Errorf("%d writes, want 1", got)
		}
	})
}

func TestRun_RecreatedServiceGetsNewSlices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		old := cluster.onlySlice(t)
		controller.DeleteService(slicetest.Service("web"))
		controller.PutService(slicetest.Service("web", func(service *corev1.Service) { service.UID = "recreated" }))
		advance(100 * time.Millisecond)
		slice := cluster.onlySlice(t)
		if slice.UID == old.UID || slice.OwnerReferences[0].UID != "recreated" {
			t.Errorf("slice %s (%s) is owned by %s, want a new one of the new Service", slice.Name, slice.UID, slice.OwnerReferences[0].UID)
		}
		if got := len(slice.Endpoints); got != 2 {
			t.Errorf("%d endpoints, want 2", got)
		}
	})
}

// A finalizer of another writer keeps a slice that we deleted. The Service must not wait for it.
func TestRun_FinalizerOnADeletedSliceDelaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWithWeb(t)
		old := cluster.onlySlice(t).Name
		cluster.edit(old, func(slice *discoveryv1.EndpointSlice) { slice.Finalizers = []string{"example.com/wait"} })
		controller.PutService(slicetest.Service("web", func(service *corev1.Service) { service.UID = "recreated" }))
		advance(100 * time.Millisecond)
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		advance(100 * time.Millisecond)
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		for name, slice := range cluster.slices {
			if name != old && len(slice.Endpoints) != 3 {
				t.Errorf("slice %s has %d endpoints, want 3", name, len(slice.Endpoints))
			}
		}
		if cluster.slices[old].DeletionTimestamp == nil || len(cluster.slices) != 2 {
			t.Errorf("%d slices, want the new one and the old one being deleted", len(cluster.slices))
		}
	})
}

// startWith starts a Controller that holds all shards, with Service web of some ready Pods.
func startWith(t *testing.T, pods int) (*slicecontroller.Controller, *fakeCluster, *eventSink) {
	t.Helper()
	events := &eventSink{}
	controller, cluster := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) { deps.Events = events })
	holdAllShards(t, controller)
	putService(controller, "web", pods)
	advance(100 * time.Millisecond)
	return controller, cluster, events
}

// Annotations and labels of another writer are no contention. Labels that slicesvc does not set are
// removed, as upstream does, less and less often.
func TestRun_AnnotationsAndLabelsAreNoContention(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(slice *discoveryv1.EndpointSlice, round int)
		most int
	}{
		"annotations": {func(s *discoveryv1.EndpointSlice, round int) {
			s.Annotations = map[string]string{"round": fmt.Sprint(round)}
		}, 20},
		"labels": {func(s *discoveryv1.EndpointSlice, round int) { s.Labels["round"] = fmt.Sprint(round) }, 40},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				controller, cluster, events := startWith(t, 3)
				slice := cluster.onlySlice(t).Name
				cluster.takeWrites()
				for round := range 10 {
					var changes []func(*corev1.Pod)
					if round%2 == 0 {
						changes = append(changes, slicetest.Unready)
					}
					controller.PutPod(slicetest.Pod("web-0", slicetest.Address(0), append(changes, labelledApp("web"))...))
					for i := range 30 {
						cluster.edit(slice, func(s *discoveryv1.EndpointSlice) { c.edit(s, 30*round+i) })
						advance(100 * time.Millisecond)
						if got := *cluster.onlySlice(t).Endpoints[0].Conditions.Ready; got != (round%2 == 1) {
							t.Fatalf("round %d: web-0 is ready: %t", round, got)
						}
					}
				}
				controller.DeletePod(slicetest.Pod("web-1", slicetest.Address(1), labelledApp("web")))
				cluster.edit(slice, func(s *discoveryv1.EndpointSlice) { c.edit(s, -1) })
				advance(100 * time.Millisecond)
				if got := len(cluster.onlySlice(t).Endpoints); got != 2 {
					t.Errorf("%d endpoints after the deletion of a Pod, want 2", got)
				}
				if state, _ := controller.State(key("web")); state.ContendedBy != "" || state.WriteTimes[slice].IsZero() || len(events.with("EndpointSlicesContended")) > 0 {
					t.Errorf("contended by %q, last write at %v", state.ContendedBy, state.WriteTimes[slice])
				}
				if got := cluster.takeWrites(); got > c.most {
					t.Errorf("%d writes, want at most %d", got, c.most)
				}
				advance(5 * time.Minute)
				if label := cluster.onlySlice(t).Labels["round"]; label != "" {
					t.Errorf("the label %q is still there", label)
				}
			})
		})
	}
}

// Another controller puts a deleted Pod back after each of our writes, and takes the hint of an
// endpoint. Each removal is repeated within a second, and no other removal waits.
func TestRun_ContentionWithholdsNoRemoval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, events := startWith(t, 6)
		slice := cluster.onlySlice(t).Name
		stale := cluster.onlySlice(t).Endpoints[1]
		has := func(address string) bool {
			return strings.Contains(describe(cluster.onlySlice(t)), address+" ")
		}
		undo := func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Zone = nil
			if !strings.Contains(describe(s), stale.Addresses[0]+" ") {
				s.Endpoints = append(s.Endpoints, *stale.DeepCopy())
			}
			s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "other"}}
		}
		controller.DeletePod(slicetest.Pod("web-1", slicetest.Address(1), labelledApp("web")))
		cluster.takeWrites()
		for range 60 {
			cluster.edit(slice, undo)
			advance(time.Second + 100*time.Millisecond)
			if has(stale.Addresses[0]) {
				t.Fatalf("the endpoint that the other writer put back is still there: %s", describe(cluster.onlySlice(t)))
			}
		}
		if got := cluster.takeWrites(); got > 70 {
			t.Errorf("%d writes in 66 seconds", got)
		}
		cluster.edit(slice, undo)
		controller.DeletePod(slicetest.Pod("web-2", slicetest.Address(2), labelledApp("web")))
		controller.PutPod(slicetest.Pod("web-3", slicetest.Address(3), labelledApp("web"), slicetest.Unready))
		advance(50 * time.Millisecond)
		if has(slicetest.Address(2)) || strings.Contains(describe(cluster.onlySlice(t)), slicetest.Address(3)+" ready") {
			t.Errorf("slice has %s, want neither the deleted Pod nor one that is not ready", describe(cluster.onlySlice(t)))
		}
		if state, _ := controller.State(key("web")); state.ContendedBy != "other" || len(events.with("EndpointSlicesContended")) != 1 {
			t.Errorf("contended by %q, events %q", state.ContendedBy, events.with("EndpointSlicesContended"))
		}
	})
}

// Another controller takes the zone of an endpoint of one slice again and again, so that this
// change waits. Then it deletes the other slice while that is being written. The missing endpoints
// must not wait with the zone.
func TestRun_APausedChangeDelaysNoAnswerToAnEditDuringTheSync(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWith(t, 150)
		var paused, other string
		for name, slice := range cluster.slices {
			if len(slice.Endpoints) == 100 {
				paused = name
			} else {
				other = name
			}
		}
		undo := func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Zone = nil }
		for range 50 {
			cluster.edit(paused, undo)
			advance(time.Second)
		}
		advance(5 * time.Second) // until only the paused change waits
		if state, _ := controller.State(key("web")); state.ContendedBy == "" {
			t.Fatal("no contention")
		}
		gone := cluster.slices[other].Endpoints[0].TargetRef.Name
		deleted := false
		cluster.loseWith(func(change pack.Change) error {
			if !deleted && change.Slice.Name == other {
				deleted = true
				cluster.remove(other)
			}
			return nil
		})
		controller.DeletePod(slicetest.Pod(gone, cluster.slices[other].Endpoints[0].Addresses[0], labelledApp("web")))
		advance(2 * time.Second)
		if got := len(cluster.endpoints(t)); !deleted || got != 149 {
			t.Errorf("%d endpoints two seconds later, want 149", got)
		}
	})
}

// A writer that changes a slice between our read and our write, again and again, delays an urgent
// change by a second at most each time.
func TestRun_ConflictsAreRetriedWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, _ := startWith(t, 3)
		attempts := 0
		conflicts := func(count int) func(pack.Change) error {
			attempts = 0
			return func(change pack.Change) error {
				if attempts++; attempts > count {
					return nil
				}
				annotated := cluster.slices[change.Slice.Name].DeepCopy()
				annotated.Annotations = map[string]string{"attempt": fmt.Sprint(attempts)}
				cluster.store(annotated)
				return nil // the version no longer matches
			}
		}
		cluster.refuseWith(conflicts(20))
		controller.DeletePod(slicetest.Pod("web-1", slicetest.Address(1), labelledApp("web")))
		advance(22 * time.Second)
		if got := len(cluster.onlySlice(t).Endpoints); got != 2 || attempts != 21 {
			t.Errorf("%d endpoints after %d attempts, want 2 after 21", got, attempts)
		}
	})
}

// Another controller changes a slice after each of our writes.
func TestRun_ContentionPausesOtherChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := &eventSink{}
		controller, cluster := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
			deps.Events = events
		})
		holdAllShards(t, controller)
		putService(controller, "web", 3)
		advance(100 * time.Millisecond)
		name := cluster.onlySlice(t).Name
		undo := func(slice *discoveryv1.EndpointSlice) {
			slice.Endpoints[0].Zone = nil
			slice.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "other"}}
		}
		for range 600 {
			cluster.edit(name, undo)
			advance(time.Second)
		}
		if got := cluster.takeWrites(); got > 20 {
			t.Errorf("%d writes in ten minutes while another writer writes each second", got)
		}
		state, _ := controller.State(key("web"))
		contended := events.with("EndpointSlicesContended")
		if state.ContendedBy != "other" || len(contended) == 0 || !strings.HasPrefix(contended[0], `EndpointSlicesContended web: "other" keeps`) {
			t.Errorf("contended by %q, events %q", state.ContendedBy, contended)
		}
		controller.PutPod(slicetest.Pod("web-9", "10.1.0.99"))
		advance(time.Second)
		if got := len(cluster.onlySlice(t).Endpoints); got != 4 {
			t.Errorf("%d endpoints, want the missing one to be added", got)
		}
		if _, err := controller.Reconcile(t.Context(), key("web"), ""); err != nil || cluster.onlySlice(t).Endpoints[0].Zone == nil {
			t.Errorf("a requested sync is suspended: %v", err)
		}
		advance(time.Hour)
		if state, _ := controller.State(key("web")); state.ContendedBy != "" || state.History.Failures > 0 {
			t.Errorf("after the other writer has stopped: %+v", state)
		}
	})
}

// A write may be stored although its answer is lost. The event of that write is not another writer.
func TestRun_AnUnansweredWriteIsNoContention(t *testing.T) {
	t.Parallel()
	for name, lag := range map[string]time.Duration{"event later": 100 * time.Millisecond, "event meanwhile": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				events := &eventSink{}
				controller, cluster := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
					deps.Events = events
				})
				holdAllShards(t, controller)
				putService(controller, "web", 3)
				advance(100 * time.Millisecond)
				lost, writes := 0, 0
				cluster.mu.Lock()
				cluster.lag = lag
				cluster.lose = func(pack.Change) error {
					if writes++; writes%2 == 1 {
						return nil
					}
					lost++
					return fmt.Errorf("update: %w", context.DeadlineExceeded)
				}
				cluster.mu.Unlock()
				for range 10 {
					controller.PutPod(slicetest.Pod("web-0", "10.1.0.1", slicetest.Unready))
					advance(time.Second)
					controller.PutPod(slicetest.Pod("web-0", "10.1.0.1"))
					advance(time.Second)
				}
				contended := events.with("EndpointSlicesContended")
				if state, _ := controller.State(key("web")); state.ContendedBy != "" || len(contended) > 0 || lost < 5 {
					t.Errorf("contended by %q, events %q, after %d writes, %d without an answer", state.ContendedBy, contended, writes, lost)
				}
				if got := len(cluster.onlySlice(t).Endpoints); got != 3 || !*cluster.onlySlice(t).Endpoints[0].Conditions.Ready {
					t.Errorf("slice is %+v, want three endpoints, all ready", cluster.onlySlice(t))
				}
			})
		})
	}
}
