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

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
)

var errBroken = errors.New("the watch broke")

// term is one Run in a bubble.
type term struct {
	t        *testing.T
	town     *town
	loop     *evictioncontroller.Controller
	registry *prometheus.Registry

	mu      sync.Mutex // guards reports
	reports []error
}

// run evicts from a town while story happens, and returns how Run ended.
func run(t *testing.T, rate float64, story func(*term)) {
	synctest.Test(t, func(t *testing.T) {
		begin := &term{t: t, town: newTown(), registry: prometheus.NewRegistry()}
		begin.run(rate, story)
	})
}

func (x *term) run(rate float64, story func(*term)) {
	x.t.Helper()
	metrics, err := evictioncontroller.NewMetrics(x.registry)
	if err != nil {
		x.t.Fatal(err)
	}
	x.loop = evictioncontroller.New(evictioncontroller.Config{
		Rules: eviction.Rules{Rate: rate}, Workers: 4, Metrics: metrics, Logger: slog.New(slog.NewTextHandler(x.t.Output(), nil)),
	})
	if _, running := x.loop.Pending("a1"); running {
		x.t.Error("it says that it runs before it does")
	}
	ctx, cancel := context.WithCancel(x.t.Context())
	ended := make(chan error, 1)
	cluster := evictioncontroller.Cluster{Cache: x.town, Writer: clerk{x.town}, Events: x.town, NodeHealth: x.town}
	go func() { ended <- x.loop.Run(ctx, cluster, x.report) }()
	synctest.Wait()
	story(x)
	cancel()
	if err := <-ended; err != nil {
		x.t.Errorf("run: %v", err)
	}
	if _, running := x.loop.Pending("a1"); running {
		x.t.Error("it says that it runs after it has")
	}
}

func (x *term) report(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.reports = append(x.reports, err)
}

func (x *term) lastReport() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.reports[len(x.reports)-1]
}

// expect compares after how many seconds pods were evicted.
func (x *term) expect(want map[string]float64) {
	x.t.Helper()
	synctest.Wait()
	got := map[string]float64{}
	for name, after := range x.town.leavers() {
		got[name] = after.Truncate(time.Second / 2).Seconds()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		x.t.Errorf("evicted after seconds (-want +got):\n%s", diff)
	}
}

func TestRun_EvictsEachPodInItsTime(t *testing.T) {
	run(t, 0, func(x *term) {
		x.town.node("a1")
		x.town.pod("plain", "a1", -1)
		x.town.pod("brief", "a1", 10)
		x.town.pod("long", "a1", 100)
		x.town.node("a2", "maintenance")
		x.town.pod("elsewhere", "a2", -1)
		time.Sleep(time.Second)
		x.town.node("a1", "maintenance")
		time.Sleep(50 * time.Second)
		x.town.pod("newcomer", "a1", 10)
		time.Sleep(time.Minute)
		x.expect(map[string]float64{"elsewhere": 0, "plain": 1, "brief": 11, "newcomer": 61, "long": 101})
		for name, after := range x.town.leavers() {
			if late := after % time.Second; late > 2*evictioncontroller.Interval {
				t.Errorf("%s was %v late", name, late)
			}
		}
		if err := x.lastReport(); err != nil {
			t.Errorf("reported %v", err)
		}
	})
}

func TestRun_ATaintThatGoesInTimeEvictsNobody(t *testing.T) {
	run(t, 0, func(x *term) {
		x.town.node("a1", "maintenance")
		x.town.pod("spared", "a1", 30)
		time.Sleep(29 * time.Second)
		x.town.node("a1")
		x.town.node("a2", "maintenance")
		x.town.pod("vanishing", "a2", 30)
		time.Sleep(29 * time.Second)
		x.town.mu.Lock()
		delete(x.town.nodes, "a2")
		x.town.changed["a2"] = struct{}{}
		x.town.mu.Unlock()
		time.Sleep(time.Hour)
		x.expect(map[string]float64{})
		if diff := cmp.Diff([]string{"spared"}, x.town.spared); diff != "" {
			t.Errorf("Events of those who may stay (-want +got):\n%s", diff)
		}
	})
}

func TestRun_TheNodeIsReadAgainBeforeAPodGoes(t *testing.T) {
	run(t, 0, func(x *term) {
		x.town.node("a1", "maintenance")
		for i := range 3 {
			x.town.pod(fmt.Sprintf("p%d", i), "a1", 30+5*int64(i))
		}
		time.Sleep(time.Second)
		x.town.freeze()
		x.town.node("a1") // which the watch does not tell
		time.Sleep(time.Minute)
		x.expect(map[string]float64{})
		if n := x.tries("withdrawn"); n != 1 {
			t.Errorf("%v evictions were withdrawn, want one, from which all that is new was learnt", n)
		}
		if err := x.lastReport(); err != nil {
			t.Errorf("reported %v", err)
		}
		x.town.node("a1", "maintenance")
		x.town.thaw()
		time.Sleep(time.Minute)
		x.expect(map[string]float64{"p0": 91, "p1": 96, "p2": 101})
	})
}

// sample is the value of a metric with the label, if it has any.
func (x *term) sample(name, label string) float64 {
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

func (x *term) tries(result string) float64 {
	x.t.Helper()
	return x.sample("trivet_taint_eviction_tries_total", result)
}

func TestRun_DoubtHoldsHealthTaintsOnly(t *testing.T) {
	run(t, 0, func(x *term) {
		for _, name := range []string{"a1", "b1"} {
			x.town.node(name, corev1.TaintNodeUnreachable)
			x.town.pod("on-"+name, name, 10)
		}
		x.town.node("a2", "maintenance")
		x.town.pod("on-a2", "a2", 10)
		x.town.doubt("a", "all nodes of the zone are silent")
		time.Sleep(time.Minute)
		x.expect(map[string]float64{"on-a2": 10, "on-b1": 10})
		pending, running := x.loop.Pending("a1")
		if !running || len(pending) != 1 || pending[0].HeldBy != "all nodes of the zone are silent" || time.Until(pending[0].Due) > -49*time.Second {
			t.Errorf("pending on a1: %+v, %v; want on-a1, held and long due", pending, running)
		}
		x.town.doubt("a", "")
		time.Sleep(time.Second)
		x.expect(map[string]float64{"on-a1": 60, "on-a2": 10, "on-b1": 10})
	})
}

func TestRun_WhatFailsIsTriedAgainAndHoldsNobodyUp(t *testing.T) {
	run(t, 0, func(x *term) {
		broken := apierrors.NewInternalError(errors.New("no disk"))
		x.town.refuse(func(pod string) error {
			if pod == "bad" {
				return broken
			}
			return nil
		})
		x.town.node("a1", "maintenance")
		x.town.pod("bad", "a1", 0)
		x.town.pod("good", "a1", 5)
		time.Sleep(4 * time.Second)
		if err := x.lastReport(); !errors.Is(err, broken) {
			t.Errorf("reported %v, want %v", err, broken)
		}
		pending, _ := x.loop.Pending("a1")
		if len(pending) != 2 || pending[0].Name != "bad" || pending[0].Failures < 2 || !strings.Contains(pending[0].LastError, "no disk") {
			t.Errorf("pending are %+v, want bad first, with its failures", pending)
		}
		time.Sleep(2 * time.Minute)
		x.expect(map[string]float64{"good": 5})
		want := []string{"bad at 0s", "bad at 1s", "bad at 3s", "good at 5s", "bad at 7s", "bad at 15s", "bad at 31s", "bad at 1m1s", "bad at 1m31s", "bad at 2m1s"}
		if diff := cmp.Diff(want, x.town.tries); diff != "" {
			t.Errorf("tries (-want +got):\n%s", diff)
		}
		x.town.refuse(func(string) error { return nil })
		time.Sleep(30 * time.Second)
		if got := x.town.leavers(); got["bad"] == 0 {
			t.Error("what failed was given up")
		}
		time.Sleep(2 * time.Second)
		if err := x.lastReport(); err != nil {
			t.Errorf("reported %v after all has succeeded", err)
		}
	})
}

func TestRun_AThousandPodsGoAtTheRateAskedFor(t *testing.T) {
	for rate, span := range map[float64][2]time.Duration{0: {0, 5 * time.Second}, 20: {49 * time.Second, 52 * time.Second}} {
		run(t, rate, func(x *term) {
			x.town.mu.Lock()
			x.town.slow = 10 * time.Millisecond
			x.town.mu.Unlock()
			x.town.node("a1", "maintenance")
			for i := range 1000 {
				x.town.pod(fmt.Sprintf("p%d", i), "a1", 0)
			}
			time.Sleep(2 * time.Minute)
			last := time.Duration(0)
			for _, after := range x.town.leavers() {
				last = max(last, after)
			}
			if n := len(x.town.leavers()); n != 1000 || last < span[0] || last > span[1] {
				t.Errorf("at %v a second %d went within %v, want 1000 within %v", rate, n, last, span)
			}
			if x.town.most > 4 {
				t.Errorf("%d at the same time with 4 workers", x.town.most)
			}
		})
	}
}

func TestRun_APodThatChangedMeanwhileIsJudgedAnew(t *testing.T) {
	run(t, 0, func(x *term) {
		x.town.mu.Lock()
		x.town.slow = 3 * time.Second
		x.town.mu.Unlock()
		x.town.node("a1", "maintenance")
		x.town.pod("p", "a1", 10)
		time.Sleep(11 * time.Second)
		x.town.pod("p", "a1", 1000) // of the same UID, while its eviction is under way
		time.Sleep(time.Minute)
		x.expect(map[string]float64{})
		if n := x.tries("conflict"); n != 1 {
			t.Errorf("%v conflicts, want 1", n)
		}
	})
}

// A watch that hangs must not turn into requests.
func TestRun_RacesThatAreLostAgainAndAgainCostLess(t *testing.T) {
	run(t, 0, func(x *term) {
		conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("changed"))
		x.town.refuse(func(string) error { return conflict })
		x.town.node("a1", "maintenance")
		x.town.pod("p", "a1", 0)
		time.Sleep(time.Minute)
		if n := x.tries("conflict"); n < 10 || n > 20 {
			t.Errorf("%v tries in a minute, want a few at first and then one every 5 s", n)
		}
		if err := x.lastReport(); err != nil {
			t.Errorf("reported %v: losing a race is no failure", err)
		}
	})
}

func TestRun_EndsWithItsWorkersWhileAnswersArePending(t *testing.T) {
	run(t, 0, func(x *term) {
		x.town.mu.Lock()
		x.town.slow = time.Hour
		x.town.mu.Unlock()
		x.town.node("a1", "maintenance")
		x.town.pod("p", "a1", 0)
		time.Sleep(time.Second)
	})
}

func TestRun_AWatchThatEndsEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics, err := evictioncontroller.NewMetrics(nil)
		if err != nil {
			t.Fatal(err)
		}
		loop := evictioncontroller.New(evictioncontroller.Config{Workers: 1, Metrics: metrics, Logger: slog.New(slog.DiscardHandler)})
		for _, synced := range []bool{true, false} {
			town := newTown()
			if !synced {
				town.synced = make(chan struct{})
			}
			close(town.broken)
			err := loop.Run(t.Context(), evictioncontroller.Cluster{Cache: town, Writer: clerk{town}, Events: town, NodeHealth: evictioncontroller.ReliableTaints{}}, func(error) {})
			if !errors.Is(err, errBroken) {
				t.Errorf("listed %v: run ended with %v, want %v", synced, err, errBroken)
			}
		}
	})
}

func TestRun_UpstreamsMetricsAreInSeconds(t *testing.T) {
	run(t, 0, func(x *term) {
		x.town.mu.Lock()
		x.town.slow = 2 * time.Second
		x.town.mu.Unlock()
		x.town.node("a1", "maintenance")
		x.town.pod("p", "a1", 10)
		x.town.pod("q", "a1", 100)
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
