package slicecontroller_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// namesIn gives the names of some Services that are in a shard.
func namesIn(number, count int) []string {
	var names []string
	for i := 0; len(names) < count; i++ {
		if name := fmt.Sprintf("svc-%d", i); shard.Of(slicetest.Namespace, name, shards) == number {
			names = append(names, name)
		}
	}
	return names
}

// servicesWithSlices names the Services that have slices, in order.
func servicesWithSlices(api *apiserver) []string {
	api.mu.Lock()
	defer api.mu.Unlock()
	var names []string
	for _, slice := range api.slices {
		names = append(names, slice.Labels[discoveryv1.LabelServiceName])
	}
	slices.Sort(names)
	return names
}

func TestHold_WorksOnTheServicesOfItsShardAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api := start(t)
		first, second := namesIn(1, 3), namesIn(2, 3)
		for _, name := range slices.Concat(first, second, namesIn(3, 3)) {
			e.PutService(slicetest.Service(name))
		}
		expect := func(when string, want ...string) {
			t.Helper()
			settle(time.Second)
			slices.Sort(want)
			if diff := gocmp.Diff(want, servicesWithSlices(api)); diff != "" {
				t.Errorf("%s: Services with slices (-want +got):\n%s", when, diff)
			}
		}
		held := hold(t, e, 1)
		expect("one shard is held", first...)
		hold(t, e, 2)
		expect("two shards are held", slices.Concat(first, second)...)

		held.end()
		for _, name := range slices.Concat(first[:1], second[:1]) {
			api.delete(slicesOf(t, e, name)[0].Name)
		}
		expect("the first is lost", slices.Concat(first[1:], second)...)
		hold(t, e, 1)
		expect("and back", slices.Concat(first, second)...)
	})
}

func labelledApp(app string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": app} }
}

func targetPort(number int32) func(*corev1.Service) {
	return func(service *corev1.Service) { service.Spec.Ports[0].TargetPort = intstr.FromInt32(number) }
}

func madeAgain(service *corev1.Service) { service.UID = "made again" }

func slicesOf(t *testing.T, e *slicecontroller.Engine, service string) []*discoveryv1.EndpointSlice {
	t.Helper()
	state, ok := e.State(key(service))
	if !ok || len(state.Slices) == 0 {
		t.Fatalf("%s has no slices", service)
	}
	return state.Slices
}

// A pass over a Service of ten slices makes four writes every two milliseconds.
func TestHold_ReturnsAfterItsPassesAndLeavesOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api := start(t, blind)
		lost, kept := namesIn(1, 1)[0], namesIn(2, 1)[0]
		fillShop(e, lost, 950)
		fillShop(e, kept, 950)
		first := hold(t, e, 1)
		hold(t, e, 2)
		time.Sleep(3500 * time.Microsecond) // the second four are stored and not yet answered
		began := time.Now()
		first.end()
		if took := time.Since(began); took != 500*time.Microsecond {
			t.Errorf("the term was over after %v, want it to wait half a millisecond for the answer", took)
		}
		if got := api.writing(1); got != 0 {
			t.Errorf("%d writes are still under way", got)
		}
		settle(time.Minute)
		count := map[string]int{}
		for _, name := range servicesWithSlices(api) {
			count[name]++
		}
		if diff := gocmp.Diff(map[string]int{lost: 8, kept: 10}, count); diff != "" {
			t.Errorf("slices of Services (-want +got):\n%s", diff)
		}
		if state, _ := e.State(key(lost)); state.History != (slicecontroller.History{}) {
			t.Errorf("the pass cut short counts as %+v", state.History)
		}
		hold(t, e, 1)
		settle(time.Minute)
		if got := len(endpointsOf(t, api)); got != 1900 {
			t.Errorf("%d endpoints after the next term, want 1900", got)
		}
	})
}

func fillShop(e *slicecontroller.Engine, service string, pods int) {
	e.PutNode(node("node-a", "zone-a"))
	e.PutService(slicetest.Service(service, selectorOf(service)))
	for i := range pods {
		e.PutPod(slicetest.Pod(fmt.Sprintf("%s-%d", service, i), slicetest.Address(i), labelledApp(service)))
	}
}

// While a shard is away another replica works on it. When it comes back to a
// replica whose watch has stood still, that one must not plan from the past: it
// reads what it missed. If it cannot, every one of its writes must be refused
// until the watch moves on.
func TestHold_AShardThatComesBackToAnOldCacheIsNotSpoilt(t *testing.T) {
	for name, meanwhile := range map[string]func(put func(func(*slicecontroller.Engine))){
		"endpoints came": func(put func(func(*slicecontroller.Engine))) {
			put(func(e *slicecontroller.Engine) { fillShop(e, "web", 350) })
		},
		"endpoints went": func(put func(func(*slicecontroller.Engine))) {
			put(func(e *slicecontroller.Engine) {
				for i := 20; i < 150; i++ {
					e.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
				}
			})
		},
		"the ports changed": func(put func(func(*slicecontroller.Engine))) {
			put(func(e *slicecontroller.Engine) { e.PutService(slicetest.Service("web", targetPort(9090))) })
		},
		"made again": func(put func(func(*slicecontroller.Engine))) {
			put(func(e *slicecontroller.Engine) { e.PutService(slicetest.Service("web", madeAgain)) })
		},
	} {
		sees := func(*slicecontroller.Config, *slicecontroller.Deps) {}
		for view, eyes := range map[string]func(*slicecontroller.Config, *slicecontroller.Deps){"sees": sees, "blind": blind} {
			t.Run(name+"/"+view, func(t *testing.T) { comeBackToAnOldCache(t, eyes, meanwhile, view == "blind") })
		}
	}
}

func comeBackToAnOldCache(t *testing.T, eyes func(*slicecontroller.Config, *slicecontroller.Deps), meanwhile func(func(func(*slicecontroller.Engine))), refused bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		own := shard.Of(slicetest.Namespace, "web", shards)
		lagging, api := start(t, eyes)
		other := api.join(t).Engine
		put := func(news func(*slicecontroller.Engine)) { news(lagging); news(other) }
		put(func(e *slicecontroller.Engine) { fillShop(e, "web", 150) })
		first := hold(t, lagging, own)
		settle(time.Second)
		api.took()
		thaw := api.freeze()
		first.end()
		away := hold(t, other, own)
		meanwhile(put)
		settle(time.Second)
		away.end()
		want := api.contents()
		if api.took() == 0 {
			t.Fatal("the other replica wrote nothing")
		}

		hold(t, lagging, own)
		settle(time.Minute)
		if diff := gocmp.Diff(want, api.contents()); diff != "" {
			t.Errorf("an old cache spoilt the slices (-before +after):\n%s", diff)
		}
		if state, _ := lagging.State(key("web")); (state.History.Failures > 0) != refused {
			t.Errorf("%d plans were refused, want some: %t", state.History.Failures, refused)
		}
		thaw()
		settle(2 * time.Minute)
		if state, _ := lagging.State(key("web")); state.History.LastError != "" || state.History.LastSync.IsZero() {
			t.Errorf("history is %+v, want success", state.History)
		}
		if diff := gocmp.Diff(want, api.contents()); diff != "" {
			t.Errorf("slices that were right were written (-before +after):\n%s", diff)
		}
	})
}

// The one thing that names and versions cannot refuse: while the shard was away,
// a slice came, another one after it, and the first went, all unseen by an old
// cache, which takes the first one's name for free.
func TestHold_AnOldCacheDoublesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := shard.Of(slicetest.Namespace, "web", shards)
		lagging, api := start(t)
		other := api.join(t).Engine
		put := func(news func(*slicecontroller.Engine)) { news(lagging); news(other) }
		put(func(e *slicecontroller.Engine) { fillShop(e, "web", 100) })
		first := hold(t, lagging, own)
		settle(time.Second)
		thaw := api.freeze()
		first.end()
		away := hold(t, other, own)
		for _, pods := range []int{200, 250} {
			put(func(e *slicecontroller.Engine) { fillShop(e, "web", pods) })
			settle(time.Second)
		}
		for i := 100; i < 200; i++ {
			put(func(e *slicecontroller.Engine) {
				e.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
			})
		}
		settle(time.Second)
		away.end()
		api.took()
		hold(t, lagging, own)
		settle(time.Minute)
		if got := api.took(); got != 0 || api.reads == 0 {
			t.Errorf("%d writes after %d reads past the watch, want none after some", got, api.reads)
		}
		thaw()
		settle(time.Minute)
		if got := api.size(); got != 2 {
			t.Errorf("%d slices in the end, want 2", got)
		}
		if got := len(endpointsOf(t, api)); got != 150 {
			t.Errorf("%d endpoints in the end, want 150", got)
		}
	})
}

// How passes went in a term says nothing about the next one: somebody else may
// have worked on the Service meanwhile.
func TestHold_ALostShardLeavesNothingBehindButItsLastSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, held := shop(t)
		synced, _ := e.State(key("web"))
		api.refuseWith(func(pack.Change) error { return errBusy })
		e.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		settle(time.Minute)
		before, _ := e.State(key("web"))
		if before.History.Failures == 0 || !before.History.LastSync.Equal(synced.History.LastSync) {
			t.Fatalf("history is %+v, want failures after the success of before", before.History)
		}
		held.end()
		after, _ := e.State(key("web"))
		if diff := gocmp.Diff(slicecontroller.History{LastSync: before.History.LastSync}, after.History); diff != "" {
			t.Errorf("history after the term (-want +got):\n%s", diff)
		}
		settle(time.Hour)
		if got := e.QueueLength(); got != 0 {
			t.Errorf("%d Services are queued", got)
		}
	})
}

func TestHold_OneBadServiceAloneInItsShardIsNoFailureOfTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api := start(t)
		bad := namesIn(0, 1)[0]
		for _, name := range slices.Concat([]string{bad}, namesIn(1, 3)) {
			e.PutService(slicetest.Service(name))
		}
		api.refuseWith(func(change pack.Change) error {
			if change.Slice.Labels[discoveryv1.LabelServiceName] == bad {
				return errBusy
			}
			return nil
		})
		held := lead(t, e)
		settle(time.Minute)
		if reported, err := held.reports.last(); err != nil || !reported {
			t.Errorf("the work as a whole reports %v", err)
		}
		if state, _ := e.State(key(bad)); state.History.Failures == 0 {
			t.Error("the bad Service does not fail")
		}
	})
}

func TestHold_MistakesAreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := start(t)
		held := hold(t, e, 1)
		synctest.Wait()
		for _, number := range []int{-1, 1, shards} {
			if err := e.Hold(t.Context(), number, func(error) {}); err == nil {
				t.Errorf("shard %d of %d is accepted while shard 1 is held", number, shards)
			}
		}
		held.end()
		again := hold(t, e, 1)
		synctest.Wait()
		again.end()
	})
}
