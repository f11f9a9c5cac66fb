package slicecontroller_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// The values come from an independent XXH64. They must never change: replicas agree on them.
func TestShardOf_IsConstant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		namespace, name string
		shards, want    int
	}{
		{namespace: "default", name: "kubernetes", shards: 64, want: 7},
		{namespace: "shop", name: "web", shards: 1, want: 0},
		{namespace: "shop", name: "web", shards: 64, want: 27},
		{namespace: "shop", name: "web", shards: 4096, want: 1819},
		{namespace: "kube-system", name: "kube-dns", shards: 64, want: 40},
		{namespace: "a", name: "b", shards: 3, want: 1},
		{namespace: "team-with-a-rather-long-name-in-production", name: "service-with-a-name-that-is-long-too", shards: 64, want: 63},
	} {
		if got := shard.Of(c.namespace, c.name, c.shards); got != c.want {
			t.Errorf("%s/%s is in shard %d of %d, want %d", c.namespace, c.name, got, c.shards, c.want)
		}
	}
}

// namesInShard returns names of Services in a shard.
func namesInShard(number, count int) []string {
	var names []string
	for i := 0; len(names) < count; i++ {
		if name := fmt.Sprintf("svc-%d", i); shard.Of(slicetest.Namespace, name, shards) == number {
			names = append(names, name)
		}
	}
	return names
}

// servicesWithSlices returns the Service of each slice, sorted.
func servicesWithSlices(cluster *fakeCluster) []string {
	cluster.mu.Lock()
	defer cluster.mu.Unlock()
	var names []string
	for _, slice := range cluster.slices {
		names = append(names, slice.Labels[discoveryv1.LabelServiceName])
	}
	slices.Sort(names)
	return names
}

func TestRunShard_SyncsOnlyTheServicesOfTheShard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		first, second := namesInShard(1, 3), namesInShard(2, 3)
		for _, name := range slices.Concat(first, second, namesInShard(3, 3)) {
			controller.PutService(slicetest.Service(name))
		}
		expect := func(when string, want ...string) {
			t.Helper()
			advance(time.Second)
			slices.Sort(want)
			if diff := gocmp.Diff(want, servicesWithSlices(cluster)); diff != "" {
				t.Errorf("%s: Services with slices (-want +got):\n%s", when, diff)
			}
		}
		held := holdShards(t, controller, 1)
		expect("one shard is held", first...)
		holdShards(t, controller, 2)
		expect("two shards are held", slices.Concat(first, second)...)

		held.end()
		for _, name := range slices.Concat(first[:1], second[:1]) {
			cluster.delete(slicesOf(t, controller, name)[0].Name)
		}
		expect("the first is released", slices.Concat(first[1:], second)...)
		holdShards(t, controller, 1)
		expect("the first is held again", slices.Concat(first, second)...)
	})
}

func targetPort(number int32) func(*corev1.Service) {
	return func(service *corev1.Service) { service.Spec.Ports[0].TargetPort = intstr.FromInt32(number) }
}

func recreated(service *corev1.Service) { service.UID = "recreated" }

// A sync of a Service with ten slices makes four writes every two milliseconds.
func TestRunShard_ReturnsAfterItsSyncs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t, withoutReader)
		lost, kept := namesInShard(1, 1)[0], namesInShard(2, 1)[0]
		putService(controller, lost, 950)
		putService(controller, kept, 950)
		first := holdShards(t, controller, 1)
		holdShards(t, controller, 2)
		time.Sleep(3500 * time.Microsecond) // the second four are stored and have no answer yet
		began := time.Now()
		first.end()
		if took := time.Since(began); took != 500*time.Microsecond {
			t.Errorf("the term ended after %v, want half a millisecond, when the answer comes", took)
		}
		if got := cluster.unansweredWrites(1); got != 0 {
			t.Errorf("%d writes have no answer", got)
		}
		advance(time.Minute)
		count := map[string]int{}
		for _, name := range servicesWithSlices(cluster) {
			count[name]++
		}
		if diff := gocmp.Diff(map[string]int{lost: 8, kept: 10}, count); diff != "" {
			t.Errorf("slices of Services (-want +got):\n%s", diff)
		}
		if state, _ := controller.State(key(lost)); state.History != (slicecontroller.SyncHistory{}) {
			t.Errorf("the interrupted sync counts as %+v", state.History)
		}
		holdShards(t, controller, 1)
		advance(time.Minute)
		if got := len(cluster.endpoints(t)); got != 1900 {
			t.Errorf("%d endpoints after the next term, want 1900", got)
		}
	})
}

// Another replica syncs a shard, then the shard returns to a replica whose watch has not advanced.
// That replica must not plan from its old cache: it reads the missing state. Without a Reader,
// every write must be refused until the watch advances.
func TestRunShard_OldCacheChangesNothing(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(put func(func(*slicecontroller.Controller))){
		"endpoints were added": func(put func(func(*slicecontroller.Controller))) {
			put(func(controller *slicecontroller.Controller) { putService(controller, "web", 350) })
		},
		"endpoints were removed": func(put func(func(*slicecontroller.Controller))) {
			put(func(controller *slicecontroller.Controller) {
				for i := 20; i < 150; i++ {
					controller.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
				}
			})
		},
		"the ports changed": func(put func(func(*slicecontroller.Controller))) {
			put(func(controller *slicecontroller.Controller) {
				controller.PutService(slicetest.Service("web", targetPort(9090)))
			})
		},
		"recreated": func(put func(func(*slicecontroller.Controller))) {
			put(func(controller *slicecontroller.Controller) {
				controller.PutService(slicetest.Service("web", recreated))
			})
		},
	} {
		withReader := func(*slicecontroller.Config, *slicecontroller.Deps) {}
		for view, configure := range map[string]func(*slicecontroller.Config, *slicecontroller.Deps){"with a Reader": withReader, "without": withoutReader} {
			t.Run(name+"/"+view, func(t *testing.T) { testOldCache(t, configure, meanwhile, view == "without") })
		}
	}
}

func testOldCache(t *testing.T, configure func(*slicecontroller.Config, *slicecontroller.Deps), meanwhile func(func(func(*slicecontroller.Controller))), refused bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		own := shard.Of(slicetest.Namespace, "web", shards)
		lagging, cluster := start(t, configure)
		other := cluster.join(t).Controller
		put := func(event func(*slicecontroller.Controller)) { event(lagging); event(other) }
		put(func(controller *slicecontroller.Controller) { putService(controller, "web", 150) })
		first := holdShards(t, lagging, own)
		advance(time.Second)
		cluster.takeWrites()
		resume := cluster.pauseEvents()
		first.end()
		otherTerm := holdShards(t, other, own)
		meanwhile(put)
		advance(3 * time.Second) // slices that took endpoints are written once more
		otherTerm.end()
		want := cluster.contents()
		if cluster.takeWrites() == 0 {
			t.Fatal("the other replica wrote nothing")
		}

		holdShards(t, lagging, own)
		advance(time.Minute)
		if diff := gocmp.Diff(want, cluster.contents()); diff != "" {
			t.Errorf("an old cache changed the slices (-before +after):\n%s", diff)
		}
		if state, _ := lagging.State(key("web")); (state.History.Failures > 0) != refused {
			t.Errorf("%d syncs failed, want some: %t", state.History.Failures, refused)
		}
		resume()
		advance(2 * time.Minute)
		if state, _ := lagging.State(key("web")); state.History.LastError != "" || state.History.LastSuccess.IsZero() {
			t.Errorf("history is %+v, want success", state.History)
		}
		if diff := gocmp.Diff(want, cluster.contents()); diff != "" {
			t.Errorf("correct slices were written (-before +after):\n%s", diff)
		}
	})
}

// Names and versions do not refuse this case: while another replica held the shard, two slices were
// created and the first was deleted. The old cache has neither, and would use the name of the
// first.
func TestRunShard_OldCacheDuplicatesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		own := shard.Of(slicetest.Namespace, "web", shards)
		lagging, cluster := start(t)
		other := cluster.join(t).Controller
		put := func(event func(*slicecontroller.Controller)) { event(lagging); event(other) }
		put(func(controller *slicecontroller.Controller) { putService(controller, "web", 100) })
		first := holdShards(t, lagging, own)
		advance(time.Second)
		resume := cluster.pauseEvents()
		first.end()
		otherTerm := holdShards(t, other, own)
		for _, pods := range []int{200, 250} {
			put(func(controller *slicecontroller.Controller) { putService(controller, "web", pods) })
			advance(time.Second)
		}
		for i := 100; i < 200; i++ {
			put(func(controller *slicecontroller.Controller) {
				controller.DeletePod(slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i)))
			})
		}
		advance(time.Second)
		otherTerm.end()
		cluster.takeWrites()
		holdShards(t, lagging, own)
		advance(time.Minute)
		if got := cluster.takeWrites(); got != 0 || cluster.reads == 0 {
			t.Errorf("%d writes after %d reads, want no write and some reads", got, cluster.reads)
		}
		resume()
		advance(time.Minute)
		if got := cluster.size(); got != 2 {
			t.Errorf("%d slices in the end, want 2", got)
		}
		if got := len(cluster.endpoints(t)); got != 150 {
			t.Errorf("%d endpoints in the end, want 150", got)
		}
	})
}

// The failures of a term say nothing about the next one: another replica may have synced the
// Service meanwhile.
func TestRunShard_OnlyTheLastSyncOutlivesTheTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, held := startWithWeb(t)
		synced, _ := controller.State(key("web"))
		cluster.refuseWith(func(pack.Change) error { return errBusy })
		controller.PutPod(slicetest.Pod("web-2", "10.1.0.3"))
		advance(time.Minute)
		before, _ := controller.State(key("web"))
		if before.History.Failures == 0 || !before.History.LastSuccess.Equal(synced.History.LastSuccess) {
			t.Fatalf("history is %+v, want failures and the earlier success", before.History)
		}
		held.end()
		after, _ := controller.State(key("web"))
		if diff := gocmp.Diff(slicecontroller.SyncHistory{LastSuccess: before.History.LastSuccess}, after.History); diff != "" {
			t.Errorf("history after the term (-want +got):\n%s", diff)
		}
		advance(time.Hour)
		if got := controller.QueueLength(); got != 0 {
			t.Errorf("%d Services are queued", got)
		}
	})
}

func TestRunShard_OneFailingServiceIsNoFailureOfTheLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster := start(t)
		failing := namesInShard(0, 1)[0]
		for _, name := range slices.Concat([]string{failing}, namesInShard(1, 3)) {
			controller.PutService(slicetest.Service(name))
		}
		cluster.refuseWith(func(change pack.Change) error {
			if change.Slice.Labels[discoveryv1.LabelServiceName] == failing {
				return errBusy
			}
			return nil
		})
		held := holdAllShards(t, controller)
		advance(time.Minute)
		if reported, err := held.reports.last(); err != nil || !reported {
			t.Errorf("the loop reports %v", err)
		}
		if state, _ := controller.State(key(failing)); state.History.Failures == 0 {
			t.Error("the Service does not fail")
		}
	})
}

func TestRunShard_RejectsUnknownAndHeldShards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, _ := start(t)
		held := holdShards(t, controller, 1)
		synctest.Wait()
		for _, number := range []int{-1, 1, shards} {
			if err := controller.RunShard(t.Context(), number, func(error) {}); err == nil {
				t.Errorf("shard %d of %d is accepted while shard 1 is held", number, shards)
			}
		}
		held.end()
		again := holdShards(t, controller, 1)
		synctest.Wait()
		again.end()
	})
}

func TestRun_EndOfTermInterruptsSyncs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		controller, cluster, held := startWithWeb(t)
		for i := range 20 {
			controller.PutService(slicetest.Service(fmt.Sprintf("svc-%d", i)))
		}
		time.Sleep(3 * time.Millisecond)
		held.end()
		done := cluster.takeWrites()
		if done == 0 || done >= 20 {
			t.Errorf("%d of 20 Services were written when the term ended, want some, not all", done)
		}
		for _, key := range controller.KeysAfter("", slicecontroller.Key{}, 100) {
			if state, _ := controller.State(key); state.History.Failures > 0 {
				t.Errorf("the end of the term counts as a failure of %s: %+v", key, state.History)
			}
		}
		advance(time.Minute)
		if got := cluster.takeWrites(); got != 0 {
			t.Errorf("%d writes after the term ended", got)
		}
		holdAllShards(t, controller)
		advance(time.Minute)
		if got := done + cluster.takeWrites(); got != 20 {
			t.Errorf("%d writes over both terms, want 20", got)
		}
	})
}

// A term waits for the list of another term, but not longer than it lasts.
func TestRunShard_EndsWhileAnotherTermLists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := &slowReader{answer: make(chan struct{})}
		controller, _ := start(t, func(_ *slicecontroller.Config, deps *slicecontroller.Deps) {
			reader.Reader = deps.Reader
			deps.Reader = reader
		})
		first := holdShards(t, controller, 0)
		advance(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { returned <- controller.RunShard(ctx, 1, func(error) {}) }()
		advance(time.Second)
		cancel()
		advance(time.Second)
		select {
		case err := <-returned:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the second term waits for the list after its end")
		}
		close(reader.answer)
		advance(time.Second)
		second := holdShards(t, controller, 2)
		advance(time.Second)
		if reader.lists != 2 {
			t.Errorf("%d lists, want one of the first and one of the third term", reader.lists)
		}
		first.end()
		second.end()
	})
}

// slowReader lists when answer is closed.
type slowReader struct {
	slicecontroller.Reader
	answer chan struct{}
	lists  int
}

func (r *slowReader) List(ctx context.Context) ([]metav1.ObjectMeta, string, error) {
	r.lists++
	<-r.answer
	return r.Reader.List(ctx)
}
