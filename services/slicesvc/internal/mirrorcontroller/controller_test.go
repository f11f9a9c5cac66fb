package mirrorcontroller_test

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

	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirrorcontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// Cases 1 to 6 of the specification.
func TestRun_FollowsEndpointsAndServices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		for _, step := range []struct {
			name   string
			change func()
			want   string
			writes int
		}{
			{"Endpoints before the Service", func() { cluster.putEndpoints(endpoints("web", 80, "10.1.0.1")) }, "", 0},
			{"the Service", func() { cluster.putService(service("web")) }, "web 80: 10.1.0.1+", 1},
			{"the same again", func() { cluster.putEndpoints(endpoints("web", 80, "10.1.0.1")) }, "web 80: 10.1.0.1+", 0},
			{"one becomes unready, one is added", func() { cluster.putEndpoints(endpoints("web", 80, "10.1.0.1-", "10.1.0.2")) }, "web 80: 10.1.0.1- 10.1.0.2+", 1},
			{"a selector", func() { cluster.putService(service("web", selecting)) }, "", 1},
			{"a change of Endpoints with a selector", func() { cluster.putEndpoints(endpoints("web", 80, "10.1.0.9")) }, "", 0},
			{"the selector goes", func() { cluster.putService(service("web")) }, "web 80: 10.1.0.9+", 1},
			{"an empty selector", func() {
				cluster.putService(service("web", func(s *corev1.Service) { s.Spec.Selector = map[string]string{} }))
			}, "web 80: 10.1.0.9+", 0},
			{"ExternalName", func() {
				cluster.putService(service("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }))
			}, "web 80: 10.1.0.9+", 0},
			{"the Service goes, the Endpoints stay", func() { cluster.deleteService("web") }, "", 1},
			{"the Service comes back", func() { cluster.putService(service("web")) }, "web 80: 10.1.0.9+", 1},
			{"skip-mirror", func() {
				cluster.putEndpoints(labelled(endpoints("web", 80, "10.1.0.9"), discoveryv1.LabelSkipMirror, "true"))
			}, "", 1},
			{"skip-mirror is not true", func() {
				cluster.putEndpoints(labelled(endpoints("web", 80, "10.1.0.9"), discoveryv1.LabelSkipMirror, "yes"))
			}, "web 80: 10.1.0.9+", 1},
			{"a leader election", func() {
				cluster.putEndpoints(annotated(endpoints("web", 80, "10.1.0.9"), "control-plane.alpha.kubernetes.io/leader", ""))
			}, "", 1},
			{"the election ends", func() { cluster.putEndpoints(endpoints("web", 80, "10.1.0.9")) }, "web 80: 10.1.0.9+", 1},
			{"no address", func() { cluster.putEndpoints(endpoints("web", 80)) }, "", 1},
			{"two subsets", func() { cluster.putEndpoints(withSubset(endpoints("web", 80, "10.1.0.1"), 90, "10.1.0.2")) }, "web 80: 10.1.0.1+; web 90: 10.1.0.2+", 2},
			{"the Endpoints are deleted", func() { cluster.deleteEndpoints("web") }, "", 2},
		} {
			step.change()
			cluster.expect(step.name, step.want)
			cluster.expectWrites(step.name, step.writes)
		}
		if _, ok := r.State(key("web")); ok {
			t.Error("an object without Endpoints and slices has a state")
		}
		if r.changed["web"] == 0 {
			t.Error("no change was recorded")
		}
	})
}

func labelled(object *corev1.Endpoints, name, value string) *corev1.Endpoints {
	metav1.SetMetaDataLabel(&object.ObjectMeta, name, value)
	return object
}

func annotated(object *corev1.Endpoints, name, value string) *corev1.Endpoints {
	metav1.SetMetaDataAnnotation(&object.ObjectMeta, name, value)
	return object
}

// Endpoints of Services with a selector are not kept, and cost no sync. Once the selector goes they
// are read.
func TestCache_KeepsNoContentBesideASelector(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		cluster.putService(service("web", selecting))
		for i := range 5 {
			cluster.putEndpoints(endpoints("web", 80, fmt.Sprintf("10.1.0.%d", i+1)))
			advance(10 * time.Millisecond)
		}
		state, ok := r.State(key("web"))
		if !ok || state.Reason != mirror.HasSelector || state.ContentKnown || len(state.Endpoints.Subsets) > 0 {
			t.Errorf("state is %+v", state)
		}
		if length := r.QueueLength(); length != 0 || cluster.reads != 0 {
			t.Errorf("%d objects wait, %d reads", length, cluster.reads)
		}
		cluster.putService(service("web"))
		cluster.expect("selector gone", "web 80: 10.1.0.5+")
		if cluster.reads != 1 {
			t.Errorf("%d reads, want 1", cluster.reads)
		}
	})
}

// A set of ports is divided. The new slice takes addresses that the old one loses: a second after
// that it is written once more, also if another replica leads by then. Nothing follows.
func TestRun_TakersAreWrittenOnceMore(t *testing.T) {
	t.Parallel()
	for name, handover := range map[string]bool{"the same leader": false, "the next leader": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := newCluster(t)
				first, second := cluster.join(t), cluster.join(t)
				end := first.hold(t)
				cluster.putService(service("web"))
				cluster.putEndpoints(withSubset(endpoints("web", 80, "10.1.0.1"), 90, "10.1.0.1"))
				advance(100 * time.Millisecond)
				cluster.takeWrites()
				cluster.putEndpoints(withSubset(endpoints("web", 80, "10.1.0.1", "10.1.0.2"), 90, "10.1.0.1"))
				advance(100 * time.Millisecond)
				if got := cluster.takeWrites(); len(got) != 2 || !strings.HasPrefix(got[0], "create ") || !strings.HasPrefix(got[1], "update ") {
					t.Fatalf("writes are %q, want that of the new slice before that of the old one", got)
				}
				if handover {
					end()
					second.hold(t)
				}
				advance(3 * time.Second)
				if got := cluster.takeWrites(); len(got) != 1 || !strings.HasPrefix(got[0], "update ") {
					t.Errorf("writes are %q in the next seconds, want one more of the new slice", got)
				}
				for _, slice := range cluster.slices {
					if pack.TookEndpointsLately(slice) {
						t.Errorf("slice %s is still marked", slice.Name)
					}
				}
				advance(time.Hour)
				cluster.expectWrites("later", 0)
			})
		})
	}
}

// Slices without a reason that were there before the term began are deleted (case 4, 19), and those
// that another program wrote are adopted without a write (case 21).
func TestRunShard_BeginsWithWhatThereIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, _ := start(t)
		cluster.putService(service("web"))
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.1"))
		cluster.putService(service("old"))
		cluster.putEndpoints(endpoints("old", 80, "10.1.0.2"))
		cluster.expect("before", "old 80: 10.1.0.2+; web 80: 10.1.0.1+")
		orphan := cluster.only("old").DeepCopy()
		kept := *cluster.only("web")

		next := newCluster(t)
		next.version = cluster.version
		next.storeAsOther(orphan)
		next.storeAsOther(&kept)
		next.putService(service("web"))
		next.putEndpoints(cluster.endpoints["web"])
		r := next.join(t)
		r.hold(t)
		next.expect("after", "web 80: 10.1.0.1+")
		if writes := next.takeWrites(); len(writes) != 1 || writes[0] != "delete "+orphan.Name {
			t.Errorf("writes are %v, want the deletion of %s", writes, orphan.Name)
		}
		if events := r.sink.with("EndpointsMirrored"); len(events) != 0 {
			t.Errorf("Events of an adopted object: %v", events)
		}
	})
}

// Promise 11: slices of an earlier Endpoints object are not taken for those of its successor.
func TestSync_RecreatedEndpointsOwnTheirSlices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		cluster.putService(service("web"))
		first := endpoints("web", 80, "10.1.0.1")
		first.UID = "first"
		cluster.putEndpoints(first)
		cluster.expect("first", "web 80: 10.1.0.1+")
		resume := r.pauseEvents() // the replica does not see that the first one is gone
		cluster.deleteEndpoints("web")
		second := endpoints("web", 80, "10.1.0.1")
		second.UID = "second"
		cluster.putEndpoints(second)
		resume()
		cluster.expect("second", "web 80: 10.1.0.1+")
		for _, owner := range cluster.only("web").OwnerReferences {
			if owner.UID != "second" {
				t.Errorf("owner is %s, want second", owner.UID)
			}
		}
	})
}

// Case 20, and finalizers of promise 6: what is being deleted is not held against the others.
func TestSync_TerminatingObjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, _ := start(t)
		cluster.putService(service("web"))
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.1"))
		cluster.expect("created", "web 80: 10.1.0.1+")
		held := cluster.only("web").Name
		cluster.edit(held, func(slice *discoveryv1.EndpointSlice) { slice.Finalizers = []string{"example.com/hold"} })
		cluster.takeWrites()
		cluster.delete(held)
		cluster.expect("held by a finalizer", "web 80: 10.1.0.1+") // another slice
		cluster.expectWrites("held by a finalizer", 1)
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.2"))
		cluster.expect("change beside it", "web 80: 10.1.0.2+")
		cluster.expectWrites("change beside it", 1)

		terminating := withSubset(endpoints("web", 80, "10.1.0.3"), 90, "10.1.0.3")
		now := metav1.Now()
		terminating.DeletionTimestamp = &now
		cluster.putEndpoints(terminating)
		advance(time.Second)
		if writes := cluster.takeWrites(); strings.Contains(strings.Join(writes, " "), "create") {
			t.Errorf("Endpoints are being deleted, and writes are %v", writes)
		}
	})
}

// Events and the log say something once, and again if it changes.
func TestEvents_SayAChangeOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t, func(cfg *mirrorcontroller.Config) { cfg.Limits.PerSubset = 2 })
		cluster.putService(service("web"))
		step := func(wantInvalid, wantTooMany int, addresses ...string) {
			t.Helper()
			cluster.putEndpoints(endpoints("web", 80, addresses...))
			advance(time.Second)
			if got := len(r.sink.with("InvalidIPAddress")); got != wantInvalid {
				t.Errorf("%d Events InvalidIPAddress after %v, want %d", got, addresses, wantInvalid)
			}
			if got := len(r.sink.with("TooManyAddressesToMirror")); got != wantTooMany {
				t.Errorf("%d Events TooManyAddressesToMirror after %v, want %d", got, addresses, wantTooMany)
			}
		}
		step(0, 0, "10.1.0.1")
		step(0, 1, "10.1.0.1", "10.1.0.2", "10.1.0.3")
		step(0, 1, "10.1.0.1", "10.1.0.2", "10.1.0.4")
		step(0, 2, "10.1.0.1", "10.1.0.2", "10.1.0.4", "10.1.0.5")
		step(1, 2, "10.1.0.1", "example.com")
		step(1, 2, "10.1.0.2", "example.com")
		events := append(r.sink.with("TooManyAddressesToMirror"), r.sink.with("InvalidIPAddress")...)
		for _, event := range events {
			if !strings.Contains(event, "Endpoints web endpoint-slice-mirroring-controller: ") {
				t.Errorf("Event is %q", event)
			}
		}
		mirrored := r.sink.with("EndpointsMirrored")
		if len(mirrored) != 1 || !strings.Contains(mirrored[0], "kubectl-create") {
			t.Errorf("Events about the writer are %v, want one", mirrored)
		}
		state, _ := r.State(key("web"))
		if state.InvalidCount != 1 || state.Writer != "kubectl-create" {
			t.Errorf("state has %d invalid addresses and writer %q", state.InvalidCount, state.Writer)
		}
		if health := r.Health(); health.Dropping.Count != 1 || health.Dropping.First[0] != key("web") {
			t.Errorf("dropping is %+v", health.Dropping)
		}
		step(1, 2, "10.1.0.1")
		if health := r.Health(); health.Dropping.Count != 0 {
			t.Errorf("dropping is %+v", health.Dropping)
		}
		if counts := r.Counts([]int{0, 1, 2, 3}); counts.Mirrored != 1 || counts.Endpoints != 1 || counts.EndpointSlices != 1 {
			t.Errorf("counts are %+v", counts)
		}
	})
}

// Two writers that take turns are named once each.
func TestFinished_NamesEachWriterOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		cluster.putService(service("web"))
		for i := range 20 {
			object := endpoints("web", 80, fmt.Sprintf("10.1.0.%d", i+1))
			object.ManagedFields[0].Manager = []string{"operator", "kubectl-edit"}[i%2]
			cluster.putEndpoints(object)
			advance(time.Second)
		}
		if named := strings.Count(r.log.String(), "hand-made Endpoints"); named != 2 {
			t.Errorf("%d log messages name a writer, want 2", named)
		}
	})
}

// Promise 10: both kinds of slices are reported, and the other kind may be deleted only when the
// mirrored ones are written.
func TestWritten_OnlyAfterTheMirrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		r.others["web"] = 2
		cluster.putService(service("web", selecting))
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.1"))
		advance(time.Second)
		cluster.refuseWith(refuseAll)
		cluster.putService(service("web"))
		advance(time.Second)
		if r.Written(key("web")) || r.written["web"] != 0 {
			t.Error("the mirrors count as written, and kube-apiserver refuses them")
		}
		cluster.refuseWith(nil)
		advance(2 * time.Minute)
		if !r.Written(key("web")) || r.written["web"] == 0 {
			t.Error("the mirrors do not count as written")
		}
		if health := r.Health(); health.BothSources.Count != 1 {
			t.Errorf("both sources are %+v", health.BothSources)
		}
		r.mu.Lock()
		r.others["web"] = 0
		r.mu.Unlock()
		if health := r.Health(); health.BothSources.Count != 0 {
			t.Errorf("both sources are %+v", health.BothSources)
		}
	})
}

// While Endpoints are still listed, or the shard catches up, nothing says that there are none. Once
// the shard has caught up, a Service whose Endpoints do not exist gets its turn.
func TestWritten_OnlyInATermThatHasCaughtUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := newCluster(t)
		r := cluster.join(t)
		r.others["web"], r.others["none"] = 2, 1
		cluster.putService(service("web"))
		cluster.putService(service("none"))
		advance(time.Second)
		if r.Written(key("web")) {
			t.Error("the mirrors count as written, and Endpoints are not listed yet")
		}
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.1"))
		r.hold(t)
		advance(time.Second)
		for _, name := range []string{"web", "none"} {
			if !r.Written(key(name)) || r.written[name] == 0 {
				t.Errorf("the mirrors of %s do not count as written", name)
			}
		}
	})
}

// The answer to a read may be older than a deletion that the watch has shown meanwhile.
func TestPlan_EndpointsDeletedWhileTheyAreRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		cluster.putService(service("web", selecting))
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.1"))
		advance(time.Second)
		r.setReadAnswer(time.Second)
		cluster.putService(service("web"))
		advance(100 * time.Millisecond)
		cluster.deleteEndpoints("web")
		advance(2 * time.Second)
		cluster.expect("deleted", "")
		if state, ok := r.State(key("web")); ok {
			t.Errorf("state is %+v", state)
		}
	})
}

func TestReconcile_ReturnsThePlanAndItsOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		cluster.putService(service("web"))
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.1"))
		advance(time.Second)
		preview, ok := r.Preview(key("web"))
		if !ok || !preview.Plan.Empty() || preview.Unmanaged {
			t.Fatalf("preview is %+v", preview)
		}
		done, err := r.Reconcile(context.Background(), key("web"), preview.Fingerprint)
		if err != nil || done.Fingerprint != preview.Fingerprint {
			t.Errorf("reconciled %+v, %v", done, err)
		}
		if _, err := r.Reconcile(context.Background(), key("web"), "another"); err == nil {
			t.Error("another plan was applied")
		}
		if _, err := r.Reconcile(context.Background(), key("none"), ""); err == nil {
			t.Error("an object that does not exist was synced")
		}
	})
}
