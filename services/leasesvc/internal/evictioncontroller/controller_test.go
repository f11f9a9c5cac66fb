package evictioncontroller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

var errBroken = errors.New("the watch broke")

// fixture is one Run in a bubble.
type fixture struct {
	t          *testing.T
	cluster    *fakeCluster
	controller *evictioncontroller.Controller
	registry   *prometheus.Registry
	decisions  *decisions.Log

	mu      sync.Mutex // guards reports
	reports []error
}

// run runs a controller on a fake cluster while story happens.
func run(t *testing.T, rate float64, story func(*fixture)) {
	synctest.Test(t, func(t *testing.T) {
		begin := &fixture{t: t, cluster: newFakeCluster(), registry: prometheus.NewRegistry(), decisions: decisions.NewLog()}
		begin.run(rate, story)
	})
}

func (x *fixture) run(rate float64, story func(*fixture)) {
	x.t.Helper()
	metrics, err := evictioncontroller.NewMetrics(x.registry)
	if err != nil {
		x.t.Fatal(err)
	}
	x.controller = evictioncontroller.New(evictioncontroller.Config{
		Rules: eviction.Rules{Rate: rate}, Workers: 4, Metrics: metrics, Logger: slog.New(slog.NewTextHandler(x.t.Output(), nil)),
	})
	if _, running := x.controller.Pending("a1"); running {
		x.t.Error("it says that it runs before it does")
	}
	ctx, cancel := context.WithCancel(x.t.Context())
	ended := make(chan error, 1)
	cluster := evictioncontroller.Cluster{Cache: x.cluster, Writer: fakeWriter{x.cluster}, Events: x.cluster, NodeHealth: x.cluster, Decisions: x.decisions}
	go func() { ended <- x.controller.Run(ctx, cluster, x.report) }()
	synctest.Wait()
	story(x)
	cancel()
	if err := <-ended; err != nil {
		x.t.Errorf("run: %v", err)
	}
	if _, running := x.controller.Pending("a1"); running {
		x.t.Error("it says that it runs after it has")
	}
}

func (x *fixture) report(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.reports = append(x.reports, err)
}

func (x *fixture) lastReport() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.reports[len(x.reports)-1]
}

// expect compares after how many seconds Pods were evicted.
func (x *fixture) expect(want map[string]float64) {
	x.t.Helper()
	synctest.Wait()
	got := map[string]float64{}
	for name, after := range x.cluster.evicted() {
		got[name] = after.Truncate(time.Second / 2).Seconds()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		x.t.Errorf("evicted after seconds (-want +got):\n%s", diff)
	}
}

func TestRun_EvictsEachPodWhenItIsDue(t *testing.T) {
	t.Parallel()
	run(t, 0, func(x *fixture) {
		x.cluster.node("a1")
		x.cluster.pod("plain", "a1", -1)
		x.cluster.pod("brief", "a1", 10)
		x.cluster.pod("long", "a1", 100)
		x.cluster.node("a2", "maintenance")
		x.cluster.pod("elsewhere", "a2", -1)
		time.Sleep(time.Second)
		x.cluster.node("a1", "maintenance")
		time.Sleep(50 * time.Second)
		x.cluster.pod("newcomer", "a1", 10)
		time.Sleep(time.Minute)
		x.expect(map[string]float64{"elsewhere": 0, "plain": 1, "brief": 11, "newcomer": 61, "long": 101})
		for name, after := range x.cluster.evicted() {
			if late := after % time.Second; late > 2*evictioncontroller.Interval {
				t.Errorf("%s was %v late", name, late)
			}
		}
		if err := x.lastReport(); err != nil {
			t.Errorf("reported %v", err)
		}
		want := []string{"POD_EVICTED elsewhere", "POD_EVICTED plain", "POD_EVICTED brief", "POD_EVICTED newcomer", "POD_EVICTED long"}
		if diff := cmp.Diff(want, testkit.Decisions(x.decisions, decisions.PodEvicted)); diff != "" {
			t.Errorf("decisions (-want +got):\n%s", diff)
		}
	})
}

func TestRun_TaintRemovedInTimeEvictsNoPod(t *testing.T) {
	t.Parallel()
	run(t, 0, func(x *fixture) {
		x.cluster.node("a1", "maintenance")
		x.cluster.pod("tolerating", "a1", 30)
		time.Sleep(29 * time.Second)
		x.cluster.node("a1")
		time.Sleep(time.Second)
		x.cluster.node("a2", "maintenance")
		x.cluster.pod("vanishing", "a2", 30)
		time.Sleep(29 * time.Second)
		x.cluster.mu.Lock()
		delete(x.cluster.nodes, "a2")
		x.cluster.changed["a2"] = struct{}{}
		x.cluster.mu.Unlock()
		time.Sleep(time.Hour)
		x.expect(map[string]float64{})
		if diff := cmp.Diff([]string{"tolerating"}, x.cluster.cancelled); diff != "" {
			t.Errorf("cancelled evictions (-want +got):\n%s", diff)
		}
		want := []string{"EVICTION_SCHEDULED tolerating", "EVICTION_CANCELLED tolerating", "EVICTION_SCHEDULED vanishing"}
		if diff := cmp.Diff(want, testkit.Decisions(x.decisions)); diff != "" {
			t.Errorf("decisions (-want +got):\n%s", diff)
		}
	})
}

func TestRun_NodeIsReadBeforeAPodIsEvicted(t *testing.T) {
	t.Parallel()
	run(t, 0, func(x *fixture) {
		x.cluster.node("a1", "maintenance")
		for i := range 3 {
			x.cluster.pod(fmt.Sprintf("p%d", i), "a1", 30+5*int64(i))
		}
		time.Sleep(time.Second)
		x.cluster.freeze()
		x.cluster.node("a1") // which the watch does not tell
		time.Sleep(time.Minute)
		x.expect(map[string]float64{})
		if n := x.tries("withdrawn"); n != 1 {
			t.Errorf("%v evictions were withdrawn, want one, from which all that is new was learnt", n)
		}
		if err := x.lastReport(); err != nil {
			t.Errorf("reported %v", err)
		}
		x.cluster.node("a1", "maintenance")
		x.cluster.thaw()
		time.Sleep(time.Minute)
		x.expect(map[string]float64{"p0": 91, "p1": 96, "p2": 101})
	})
}

// sample returns the value of a metric with the label, if it has any.
func (x *fixture) sample(name, label string) float64 {
	x.t.Helper()
	families, err := x.registry.Gather()
	if err != nil {
		x.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			if family.GetName() == name && (label == "" || m.Label[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
			}
		}
	}
	x.t.Errorf("no metric %s of %q", name, label)
	return 0
}

func (x *fixture) tries(result string) float64 {
	x.t.Helper()
	return x.sample("trivet_taint_eviction_tries_total", result)
}

func TestRun_UnreliableNodeHealthHoldsItsTaintsOnly(t *testing.T) {
	t.Parallel()
	run(t, 0, func(x *fixture) {
		x.cluster.node("a1", corev1.TaintNodeUnreachable)
		x.cluster.pod("on-a1", "a1", 10)
		x.cluster.node("a2", "maintenance")
		x.cluster.pod("on-a2", "a2", 10)
		x.cluster.setUnreliable(nodehealth.NoZoneReadyDelay())
		time.Sleep(time.Minute)
		x.expect(map[string]float64{"on-a2": 10})
		pending, running := x.controller.Pending("a1")
		if !running || len(pending) != 1 || pending[0].Hold != nodehealth.NoZoneReadyDelay() || time.Until(pending[0].Due) > -49*time.Second {
			t.Errorf("pending on a1: %+v, %v; want on-a1, held and long due", pending, running)
		}
		if holds := x.controller.Holds(); len(holds) != 1 || holds["a1"] != pending[0].Hold {
			t.Errorf("holds %v, want that of a1", holds)
		}
		x.cluster.setUnreliable(nodehealth.Delay{})
		time.Sleep(time.Second)
		if holds := x.controller.Holds(); len(holds) > 0 {
			t.Errorf("holds %v, want none", holds)
		}
		x.expect(map[string]float64{"on-a1": 60, "on-a2": 10})
	})
}

func TestRun_FailureIsRetriedAndDelaysNoOtherPod(t *testing.T) {
	t.Parallel()
	run(t, 0, func(x *fixture) {
		broken := apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example": no disk`))
		x.cluster.answerWith(func(pod string) error {
			if pod == "bad" {
				return broken
			}
			return nil
		})
		x.cluster.node("a1", "maintenance")
		x.cluster.pod("bad", "a1", 0)
		x.cluster.pod("good", "a1", 5)
		time.Sleep(4 * time.Second)
		if err := x.lastReport(); !errors.Is(err, broken) {
			t.Errorf("reported %v, want %v", err, broken)
		}
		pending, _ := x.controller.Pending("a1")
		if len(pending) != 2 || pending[0].Name != "bad" || pending[0].Failures < 2 || !strings.Contains(pending[0].LastError, "no disk") {
			t.Errorf("pending are %+v, want bad first, with its failures", pending)
		}
		time.Sleep(2 * time.Minute)
		x.expect(map[string]float64{"good": 5})
		want := []string{"bad at 0s", "bad at 1s", "bad at 3s", "good at 5s", "bad at 7s", "bad at 15s", "bad at 31s", "bad at 1m1s", "bad at 1m31s", "bad at 2m1s"}
		if diff := cmp.Diff(want, x.cluster.attempts); diff != "" {
			t.Errorf("tries (-want +got):\n%s", diff)
		}
		x.cluster.answerWith(func(string) error { return nil })
		time.Sleep(30 * time.Second)
		if got := x.cluster.evicted(); got["bad"] == 0 {
			t.Error("what failed was given up")
		}
		time.Sleep(2 * time.Second)
		if err := x.lastReport(); err != nil {
			t.Errorf("reported %v after all has succeeded", err)
		}
	})
}

func TestRun_ThousandPodsLeaveAtTheRate(t *testing.T) {
	t.Parallel()
	for rate, span := range map[float64][2]time.Duration{0: {0, 5 * time.Second}, 20: {49 * time.Second, 52 * time.Second}} {
		run(t, rate, func(x *fixture) {
			x.cluster.mu.Lock()
			x.cluster.slow = 10 * time.Millisecond
			x.cluster.mu.Unlock()
			x.cluster.node("a1", "maintenance")
			for i := range 1000 {
				x.cluster.pod(fmt.Sprintf("p%d", i), "a1", 0)
			}
			time.Sleep(2 * time.Minute)
			last := time.Duration(0)
			for _, after := range x.cluster.evicted() {
				last = max(last, after)
			}
			if n := len(x.cluster.evicted()); n != 1000 || last < span[0] || last > span[1] {
				t.Errorf("at %v a second %d went within %v, want 1000 within %v", rate, n, last, span)
			}
			if x.cluster.most > 4 {
				t.Errorf("%d at the same time with 4 workers", x.cluster.most)
			}
		})
	}
}

func TestRun_ChangedPodIsDecidedAgain(t *testing.T) {
	t.Parallel()
	run(t, 0, func(x *fixture) {
		x.cluster.mu.Lock()
		x.cluster.slow = 3 * time.Second
		x.cluster.mu.Unlock()
		x.cluster.node("a1", "maintenance")
		x.cluster.pod("p", "a1", 10)
		time.Sleep(11 * time.Second)
		x.cluster.pod("p", "a1", 1000) // of the same UID, while its eviction is under way
		time.Sleep(time.Minute)
		x.expect(map[string]float64{})
		if n := x.tries("conflict"); n != 1 {
			t.Errorf("%v conflicts, want 1", n)
		}
	})
}

// An answer that takes longer than the first try waits is waited for by the next try.
func TestRun_SlowAnswersDelayAnEviction(t *testing.T) {
	t.Parallel()
	run(t, 0, func(x *fixture) {
		x.cluster.mu.Lock()
		x.cluster.slow = 15 * time.Second
		x.cluster.mu.Unlock()
		x.cluster.node("a1", "maintenance")
		x.cluster.pod("p", "a1", 10)
		time.Sleep(time.Minute)
		x.expect(map[string]float64{"p": 36})
	})
}

// A benign writer has changed a Pod, and the watch of Pods hangs. The Pod leaves all the same, and
// the cache is shown to be behind until it is listed again.
func TestRun_StaleCacheOfPodsForbidsNoEviction(t *testing.T) {
	t.Parallel()
	run(t, 0, func(x *fixture) {
		x.cluster.node("a1", "maintenance")
		x.cluster.pod("p", "a1", 10)
		time.Sleep(5 * time.Second)
		x.cluster.freezePods()
		x.cluster.pod("p", "a1", 10) // an annotation, for example, which the watch does not tell
		time.Sleep(15 * time.Second)
		x.expect(map[string]float64{"p": 10})
		if err := x.lastReport(); err == nil || !strings.Contains(err.Error(), "cache of Pods is behind") {
			t.Errorf("reported %v, want the cache behind", err)
		}
		time.Sleep(2 * time.Minute)
		if err := x.lastReport(); err != nil || x.cluster.relists != 1 {
			t.Errorf("reported %v after %d relists, want none after one", err, x.cluster.relists)
		}
		if n := x.tries("conflict"); n != 1 {
			t.Errorf("%v conflicts, want one", n)
		}
	})
}

// A watch that hangs must not cause many requests.
func TestRun_RepeatedConflictsBackOff(t *testing.T) {
	t.Parallel()
	run(t, 0, func(x *fixture) {
		conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("changed"))
		x.cluster.answerWith(func(string) error { return conflict })
		x.cluster.node("a1", "maintenance")
		x.cluster.pod("p", "a1", 0)
		time.Sleep(time.Minute)
		if n := x.tries("conflict"); n < 10 || n > 20 {
			t.Errorf("%v tries in a minute, want a few at first and then one every 5 s", n)
		}
		if err := x.lastReport(); err != nil {
			t.Errorf("reported %v: losing a race is no failure", err)
		}
	})
}

func TestRun_EndsWithItsWorkersWhileRequestsRun(t *testing.T) {
	t.Parallel()
	run(t, 0, func(x *fixture) {
		x.cluster.mu.Lock()
		x.cluster.slow = time.Hour
		x.cluster.mu.Unlock()
		x.cluster.node("a1", "maintenance")
		x.cluster.pod("p", "a1", 0)
		time.Sleep(time.Second)
	})
}

func TestRun_EndsWithTheCache(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		metrics, err := evictioncontroller.NewMetrics(nil)
		if err != nil {
			t.Fatal(err)
		}
		loop := evictioncontroller.New(evictioncontroller.Config{Workers: 1, Metrics: metrics, Logger: slog.New(slog.DiscardHandler)})
		for _, synced := range []bool{true, false} {
			cluster := newFakeCluster()
			if !synced {
				cluster.synced = make(chan struct{})
			}
			close(cluster.broken)
			err := loop.Run(t.Context(), evictioncontroller.Cluster{Cache: cluster, Writer: fakeWriter{cluster}, Events: cluster}, func(error) {})
			if !errors.Is(err, errBroken) {
				t.Errorf("listed %v: run ended with %v, want %v", synced, err, errBroken)
			}
		}
	})
}

func TestRun_MetricsOfKubernetesAreInSeconds(t *testing.T) {
	t.Parallel()
	run(t, 0, func(x *fixture) {
		x.cluster.mu.Lock()
		x.cluster.slow = 2 * time.Second
		x.cluster.mu.Unlock()
		x.cluster.node("a1", "maintenance")
		x.cluster.pod("p", "a1", 10)
		x.cluster.pod("q", "a1", 100)
		time.Sleep(20 * time.Second)
		if n := x.sample("taint_eviction_controller_pod_deletions_total", ""); n != 1 {
			t.Errorf("%v deletions, want 1", n)
		}
		if sum := x.sample("taint_eviction_controller_pod_deletion_duration_seconds", ""); sum < 2 || sum > 2.2 {
			t.Errorf("the deletion took %v, want the 2 s of its answer", sum)
		}
		if n := x.sample("trivet_taint_eviction_pods", "waiting"); n != 1 {
			t.Errorf("%v waiting, want 1", n)
		}
	})
}
