package mirrorcontroller_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

func denied() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: "admission webhook \"deny.example.com\" denied the request",
	}}
}

func refuseAll(pack.Change) error { return denied() }

// refusePort refuses writes of slices with a port.
func refusePort(port int32) func(pack.Change) error {
	return func(change pack.Change) error {
		for _, served := range change.Slice.Ports {
			if *served.Port == port {
				return denied()
			}
		}
		return nil
	}
}

// Promise 12: one group that kube-apiserver refuses holds up no other, neither its creation nor its
// deletion. It is tried again with a growing pause, without end.
func TestSync_ARefusedSliceHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		cluster.refuseWith(refusePort(90))
		cluster.putService(service("web"))
		cluster.putEndpoints(withSubset(withSubset(endpoints("web", 80, "10.1.0.1"), 90, "10.1.0.9"), 70, "10.1.0.7"))
		cluster.expect("two of three", "web 70: 10.1.0.7+; web 80: 10.1.0.1+")
		var refused string
		state, _ := r.State(key("web"))
		for name, refusal := range state.Failed {
			refused = name
			if !strings.Contains(refusal.Err.Error(), "deny.example.com") || refusal.Count < 1 {
				t.Errorf("refusal is %+v", refusal)
			}
		}
		if len(state.Failed) != 1 || state.History.Failures == 0 {
			t.Fatalf("refused are %v, history is %+v", state.Failed, state.History)
		}
		advance(time.Hour)
		before := cluster.attemptsOf(refused)
		if before < 60 || before > 80 {
			t.Errorf("%d attempts in an hour, want about one a minute", before)
		}
		if events := r.sink.with("FailedToUpdateEndpointSlices"); len(events) != 1 {
			t.Errorf("Events are %v, want one", events)
		}

		// Changes of the others are made at once, and do not repeat the refused write.
		for i := range 20 {
			cluster.putEndpoints(withSubset(withSubset(endpoints("web", 80, fmt.Sprintf("10.1.1.%d", i)), 90, "10.1.0.9"), 70, "10.1.0.7"))
			advance(10 * time.Millisecond)
			if got, want := cluster.contents(), fmt.Sprintf("web 70: 10.1.0.7+; web 80: 10.1.1.%d+", i); got != want {
				t.Fatalf("slices are %q, want %q", got, want)
			}
		}
		cluster.putEndpoints(withSubset(endpoints("web", 80, "10.1.1.1"), 90, "10.1.0.9"))
		cluster.expect("a group goes", "web 80: 10.1.1.1+")
		if after := cluster.attemptsOf(refused); after > before+1 {
			t.Errorf("%d attempts of the refused slice during changes of the others", after-before)
		}

		// Another content of the refused slice is tried within a second.
		cluster.refuseWith(nil)
		cluster.putEndpoints(withSubset(endpoints("web", 80, "10.1.1.1"), 90, "10.1.0.8"))
		advance(1100 * time.Millisecond)
		cluster.expect("accepted", "web 80: 10.1.1.1+; web 90: 10.1.0.8+")
		state, _ = r.State(key("web"))
		if len(state.Failed) != 0 || state.History.Failures != 0 || state.Pending {
			t.Errorf("state is %+v", state)
		}
		if health := r.Health(); health.Failing.Count != 0 {
			t.Errorf("failing is %+v", health.Failing)
		}
	})
}

// The endpoints of a slice whose successor is refused stay: without it they would be in none.
func TestSync_KeepsEndpointsWhoseNewSliceIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, _ := start(t)
		cluster.putService(service("web"))
		cluster.putEndpoints(withSubset(endpoints("web", 80, "10.1.0.1"), 81, "10.1.0.2"))
		cluster.expect("before", "web 80: 10.1.0.1+; web 81: 10.1.0.2+")
		cluster.refuseWith(refusePort(90))
		object := endpoints("web", 90, "10.1.0.1")
		cluster.putEndpoints(object)
		advance(time.Second)
		if got := cluster.contents(); !strings.Contains(got, "10.1.0.1+") {
			t.Errorf("slices are %q", got)
		}
		cluster.refuseWith(nil)
		advance(2 * time.Minute)
		cluster.expect("accepted", "web 90: 10.1.0.1+")
	})
}

// A namespace that is being deleted refuses creations, which is no failure. The rest is written.
func TestSync_NamespaceTerminating(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		cluster.putService(service("web"))
		cluster.putEndpoints(withSubset(endpoints("web", 80, "10.1.0.1"), 81, "10.1.0.2"))
		advance(time.Second)
		cluster.refuseWith(func(change pack.Change) error {
			if change.Verb == planned.Create {
				return fmt.Errorf("create: %w", kube.ErrNamespaceTerminating)
			}
			return nil
		})
		cluster.putEndpoints(withSubset(withSubset(endpoints("web", 80, "10.1.0.9"), 90, "10.1.0.7"), 81, "10.1.0.2"))
		cluster.expect("the rest", "web 80: 10.1.0.9+; web 81: 10.1.0.2+")
		state, _ := r.State(key("web"))
		if state.History.Failures != 0 || state.CreationRefusedSince.IsZero() || state.Pending {
			t.Errorf("state is %+v", state)
		}
	})
}

// Case 15 and promise 7: what another writer changes is corrected, and what is not ours stays.
func TestSync_CorrectsEdits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		cluster.putService(service("web"))
		cluster.putEndpoints(annotated(labelled(endpoints("web", 80, "10.1.0.1", "10.1.0.2"), "team", "shop"), "note", "ours"))
		const want = "web 80: 10.1.0.1+ 10.1.0.2+"
		cluster.expect("created", want)
		name := cluster.only("web").Name
		for _, edit := range []struct {
			name   string
			change func(*discoveryv1.EndpointSlice)
			writes int
		}{
			{"an endpoint twice", func(s *discoveryv1.EndpointSlice) { s.Endpoints[1] = s.Endpoints[0] }, 1},
			{"no endpoints", func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }, 1},
			{"other ports", func(s *discoveryv1.EndpointSlice) { port := int32(9); s.Ports[0].Port = &port }, 1},
			{"a label", func(s *discoveryv1.EndpointSlice) { s.Labels["team"] = "other" }, 1},
			{"a foreign annotation and finalizer", func(s *discoveryv1.EndpointSlice) {
				s.Annotations["foreign"] = "kept"
				s.Finalizers = []string{"example.com/kept"}
			}, 0},
			{"our annotation", func(s *discoveryv1.EndpointSlice) { s.Annotations["note"] = "other" }, 1},
		} {
			advance(2 * time.Minute) // no contention
			cluster.takeWrites()
			cluster.edit(name, edit.change)
			advance(2 * time.Second)
			cluster.expect(edit.name, want)
			cluster.expectWrites(edit.name, edit.writes)
		}
		slice := cluster.only("web")
		if slice.Annotations["foreign"] != "kept" || slice.Annotations["note"] != "ours" || len(slice.Finalizers) != 1 || slice.Labels["team"] != "shop" {
			t.Errorf("slice is %+v", slice.ObjectMeta)
		}
		if state, _ := r.State(key("web")); state.Pending || state.ContendedBy != "" {
			t.Errorf("state is %+v", state)
		}
	})
}

// Promise 5: a slice that another writer relabels is another writer's from then on. A new one
// replaces it, and nothing waits for it.
func TestSync_RelabelledAndDeletedSlices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		cluster.putService(service("web"))
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.1"))
		cluster.expect("created", "web 80: 10.1.0.1+")
		first := cluster.only("web").Name
		cluster.edit(first, func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = "other.example.com" })
		cluster.expect("managed-by", "web 80: 10.1.0.1+; web 80: 10.1.0.1+")
		cluster.edit(first, func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "elsewhere" })
		second := cluster.only("web").Name
		cluster.edit(second, func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "gone" })
		cluster.expect("service-name", "elsewhere 80: 10.1.0.1+; web 80: 10.1.0.1+") // that of no Endpoints object is deleted
		cluster.delete(cluster.only("web").Name)
		cluster.expect("deleted", "elsewhere 80: 10.1.0.1+; web 80: 10.1.0.1+")
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.2"))
		cluster.expect("a later change", "elsewhere 80: 10.1.0.1+; web 80: 10.1.0.2+")
		if state, _ := r.State(key("web")); state.History.Failures != 0 || state.Pending {
			t.Errorf("state is %+v", state)
		}
	})
}

// Case 22: answers that come late, are lost, or are conflicts lead to the wanted slices, with few
// more writes.
func TestSync_WatchesAndAnswersThatAreLate(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(*fakeCluster){
		"events before answers": func(c *fakeCluster) { c.setLag(0) },
		"a late watch":          func(c *fakeCluster) { c.setLag(5 * time.Second) },
		"lost answers": func(c *fakeCluster) {
			lost := 0
			c.loseWith(func(pack.Change) error {
				if lost++; lost%2 == 1 {
					return errors.New("connection lost")
				}
				return nil
			})
		},
		"throttled": func(c *fakeCluster) {
			count := 0
			c.refuseWith(func(pack.Change) error {
				if count++; count%2 == 1 {
					return apierrors.NewTooManyRequests("slow down", 1)
				}
				return nil
			})
		},
		"conflicts": func(c *fakeCluster) {
			count := 0
			c.refuseWith(func(pack.Change) error {
				if count++; count%2 == 1 {
					return kube.ErrConflict
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster, r := start(t)
				disturb(cluster)
				cluster.putService(service("web"))
				for i := range 20 {
					cluster.putEndpoints(withSubset(endpoints("web", 80, fmt.Sprintf("10.1.0.%d", i+1)), 90, "10.1.1.1"))
					advance(3 * time.Second)
				}
				advance(time.Minute)
				cluster.expect("converged", "web 80: 10.1.0.20+; web 90: 10.1.1.1+")
				if writes := cluster.takeWrites(); len(writes) > 60 {
					t.Errorf("%d writes for 20 changes", len(writes))
				}
				advance(10 * time.Minute)
				cluster.expectWrites("quiet", 0)
				if state, _ := r.State(key("web")); state.Pending || state.History.Failures != 0 {
					t.Errorf("state is %+v", state)
				}
			})
		})
	}
}

// The answer to a read of a slice may be older than a deletion that the watch has shown meanwhile.
func TestSync_SliceDeletedWhileItIsRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		r.setReadAnswer(time.Second)
		lost := false
		cluster.loseWith(func(pack.Change) error {
			if lost {
				return nil
			}
			lost = true
			return errors.New("connection lost")
		})
		cluster.putService(service("web"))
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.1"))
		advance(500 * time.Millisecond) // the slice is being read
		cluster.delete(cluster.only("web").Name)
		advance(10 * time.Second)
		cluster.expect("deleted", "web 80: 10.1.0.1+")
	})
}

// Another writer that keeps changing a mirrored annotation costs a write each minute in the end,
// also if the Endpoints object changes often.
func TestSync_BacksOffFromAnnotations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, _ := start(t)
		cluster.putService(service("web"))
		cluster.putEndpoints(annotated(endpoints("web", 80, "10.1.0.1"), "note", "ours"))
		advance(time.Second)
		cluster.takeWrites()
		for i := range 600 {
			if slice := cluster.only("web"); slice.Annotations["note"] == "ours" {
				cluster.edit(slice.Name, func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"note": "other"} })
			}
			changed := annotated(endpoints("web", 80, "10.1.0.1"), "note", "ours")
			cluster.putEndpoints(annotated(changed, corev1.EndpointsLastChangeTriggerTime, fmt.Sprint(i)))
			advance(100 * time.Millisecond)
		}
		if writes := cluster.takeWrites(); len(writes) > 15 {
			t.Errorf("%d writes in a minute", len(writes))
		}
	})
}

// A writer that changes an annotation of its own after each of our writes delays nothing.
func TestSync_ForeignAnnotationsAreNoContention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, _ := start(t)
		cluster.putService(service("web"))
		for i := range 20 {
			cluster.putEndpoints(labelled(endpoints("web", 80, "10.1.0.1"), "team", fmt.Sprint(i)))
			advance(time.Second)
			slice := cluster.only("web")
			if got := slice.Labels["team"]; got != fmt.Sprint(i) {
				t.Fatalf("label is %s, want %d", got, i)
			}
			cluster.edit(slice.Name, func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"other": fmt.Sprint(i)} })
			advance(time.Second)
		}
	})
}

// A new leader whose watch of slices is late continues where the last one was cut short, and
// reverts nothing.
func TestRunShard_FailoverDuringAWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := newCluster(t)
		first, second := cluster.join(t), cluster.join(t)
		end := first.hold(t)
		cluster.putService(service("web"))
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.1"))
		advance(time.Second)
		resume := second.pauseEvents()
		advance(time.Second)
		// The last leader writes a slice that the next one does not see, and ends during a write.
		cluster.putEndpoints(withSubset(endpoints("web", 80, "10.1.0.1"), 90, "10.1.0.2"))
		advance(100 * time.Millisecond)
		cluster.delete(nameWithPort(cluster, 80))
		time.Sleep(1700 * time.Microsecond)
		end()
		before := len(cluster.takeWrites())
		second.hold(t)
		advance(time.Second)
		resume()
		advance(5 * time.Second)
		cluster.expect("after the failover", "web 80: 10.1.0.1+; web 90: 10.1.0.2+")
		if writes := cluster.takeWrites(); before+len(writes) > 5 {
			t.Errorf("%d writes before and %v after", before, writes)
		}
		advance(time.Minute)
		cluster.expectWrites("quiet", 0)
	})
}

func nameWithPort(cluster *fakeCluster, port int32) string {
	cluster.mu.Lock()
	defer cluster.mu.Unlock()
	for name, slice := range cluster.slices {
		if *slice.Ports[0].Port == port {
			return name
		}
	}
	return ""
}

// A second controller that reverts every write costs about a write each second, and does not delay
// what affects traffic.
func TestSync_BacksOffUnderContention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		cluster.putService(service("web"))
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.1"))
		cluster.expect("created", "web 80: 10.1.0.1+")
		name := cluster.only("web").Name
		stop := make(chan struct{})
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
				if cluster.only("web").Labels["rival"] == "" {
					cluster.edit(name, func(s *discoveryv1.EndpointSlice) { s.Labels["rival"], s.Endpoints = "yes", nil })
				}
			}
		}()
		advance(time.Minute)
		if writes := len(cluster.takeWrites()); writes > 100 {
			t.Errorf("%d writes in a minute of contention", writes)
		}
		state, _ := r.State(key("web"))
		if state.ContendedBy != "rival" || r.Health().Contended.Count != 1 {
			t.Errorf("contended by %q", state.ContendedBy)
		}
		if events := r.sink.with("EndpointSlicesContended"); len(events) != 1 {
			t.Errorf("Events are %v", events)
		}
		cluster.putEndpoints(endpoints("web", 80, "10.1.0.2"))
		advance(5 * time.Millisecond)
		if got := describe(cluster.only("web")); got != "web 80: 10.1.0.2+" {
			t.Errorf("slice is %q 5 ms after a change of the Endpoints", got)
		}
		close(stop)
		<-stopped
		advance(3 * time.Minute)
		cluster.expect("the rival is gone", "web 80: 10.1.0.2+")
		if state, _ := r.State(key("web")); state.ContendedBy != "" {
			t.Errorf("contended by %q", state.ContendedBy)
		}
	})
}

// A large object and hostile metadata cost little and reach kube-apiserver in an accepted form.
func TestSync_LargeAndHostileEndpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := start(t)
		addresses := make([]string, 5000)
		for i := range addresses {
			addresses[i] = fmt.Sprintf("10.%d.%d.%d", 1+i/62500, i/250%250, i%250+1)
		}
		object := endpoints("web", 80, addresses...)
		labelled(object, discoveryv1.LabelManagedBy, "evil")
		labelled(object, discoveryv1.LabelServiceName, "kubernetes")
		annotated(object, "endpoints.kubernetes.io/last-change-trigger-time", "2026-01-01T00:00:00Z")
		annotated(object, "note", strings.Repeat("x", 100_000))
		object.ManagedFields[0].Manager = strings.Repeat("\xff", 128)
		cluster.putService(service("web"))
		cluster.putEndpoints(object)
		advance(10 * time.Second)
		slice := cluster.only("web")
		if slice.Labels[discoveryv1.LabelManagedBy] != mirror.ManagedBy || slice.Labels[discoveryv1.LabelServiceName] != "web" || len(slice.Endpoints) != 1000 {
			t.Errorf("slice has labels %v and %d endpoints", slice.Labels, len(slice.Endpoints))
		}
		state, _ := r.State(key("web"))
		if state.TooMany != 4000 {
			t.Errorf("%d addresses are dropped, want 4000", state.TooMany)
		}
		cluster.takeWrites()
		cluster.putEndpoints(object) // promise 9: the reserved labels are no difference
		advance(10 * time.Second)
		cluster.expectWrites("again", 0)
		if state.LastPlan.Trigger != slicecontroller.ByEndpoints && state.LastPlan.Trigger != slicecontroller.ByService {
			t.Errorf("trigger is %s", state.LastPlan.Trigger)
		}
	})
}
