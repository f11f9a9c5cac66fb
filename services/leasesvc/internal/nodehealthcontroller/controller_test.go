package nodehealthcontroller_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// config is for a number of shards. The number in the name of a node gives its shard.
func config(t *testing.T, metrics *nodehealthcontroller.Metrics, shards int) nodehealthcontroller.Config {
	return nodehealthcontroller.Config{
		Rules: nodehealth.DefaultRules(), Workers: 4, Metrics: metrics, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Publisher: nodehealthcontroller.NewPublisher(),
		Shards:    shards, ShardOf: func(node string) int {
			number := 0
			_, _ = fmt.Sscanf(node, "n%d", &number)
			return number % shards
		},
	}
}

// heldShards holds the terms of the shards.
func heldShards(ctx context.Context, shards ...int) *sessioncontroller.HeldShards {
	board := sessioncontroller.NewHeldShards()
	for _, number := range shards {
		board.Add(sessioncontroller.NewHeldShard(ctx, number, 1))
	}
	return board
}

// cluster is the fake cluster for a replica that holds the terms and has no sessions.
func (f *fakeCluster) cluster(terms *sessioncontroller.HeldShards) nodehealthcontroller.Cluster {
	return nodehealthcontroller.Cluster{Cache: f, Writer: f, Events: f, Sessions: nodehealthcontroller.NewSessionTracker(nil), Evictions: noEvictions{}, HeldShards: terms, Decisions: f.decisions}
}

// run runs a controller in a bubble while story happens, and returns the registry of its metrics.
func run(t *testing.T, f *fakeCluster, story func()) *prometheus.Registry {
	return runWith(t, f, nodehealth.DefaultRules(), story)
}

func runWith(t *testing.T, f *fakeCluster, rules nodehealth.Rules, story func()) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	metrics, err := nodehealthcontroller.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	cfg := config(t, metrics, 1)
	cfg.Rules = rules
	f.decisions = decisions.NewLog()
	loop := nodehealthcontroller.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	cluster := f.cluster(heldShards(t.Context(), 0))
	go func() { ended <- loop.Run(ctx, cluster, func(error) {}) }()
	synctest.Wait()
	story()
	begin := time.Now()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if took := time.Since(begin); took != 0 {
		t.Errorf("the end took %v", took)
	}
	return registry
}

func (f *fakeCluster) written() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.writes)
}

// expectWrites compares the writes. Those of one pass have no order.
func (f *fakeCluster) expectWrites(t *testing.T, want ...string) {
	t.Helper()
	got := f.written()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}

func (f *fakeCluster) ready(name string) corev1.ConditionStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.live.nodes[name].Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

func TestRun_SilentNodeIsMarkedTaintedAndItsPodsMarkedWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		run(t, f, func() {
			f.beat(100 * time.Second)
			f.beat(40*time.Second, "n0")
			if got := f.written(); got != nil {
				t.Errorf("written before the deadline: %v", got)
			}
			f.beat(2*time.Second, "n0")
			f.expectWrites(t, "mark-unknown n0", "add-no-execute n0", "unready pod-n0")
			f.report("n0", corev1.ConditionTrue)
			f.beat(time.Second)
			f.expectWrites(t, "mark-unknown n0", "add-no-execute n0", "unready pod-n0", "remove-no-execute n0")
		})
		if diff := cmp.Diff([]string{"not ready n0", "not ready pod-n0"}, f.events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		want := []string{"NODE_MARKED_UNKNOWN n0", "TAINT_ADDED n0", "POD_MARKED_NOT_READY pod-n0", "NODE_BACK n0", "TAINT_REMOVED n0"}
		if diff := cmp.Diff(want, testkit.Decisions(f.decisions)); diff != "" {
			t.Errorf("decisions (-want +got):\n%s", diff)
		}
		kept, _, _ := f.decisions.After(decisions.Cursor{})
		if marked := kept[0]; marked.Epoch != 1 || marked.InputAge < 40*time.Second || !strings.Contains(marked.Message, "no sign of life") {
			t.Errorf("decision to mark a Node: %+v", marked)
		}
	})
}

func TestRun_ManyNodesThatDieTogetherAreMarked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(20)
		run(t, f, func() {
			silent := []string{"n0", "n1", "n2", "n3", "n4"}
			f.beat(60*time.Second, silent...)
			for _, name := range silent {
				if got := f.ready(name); got != corev1.ConditionUnknown {
					t.Errorf("Ready of %s is %s", name, got)
				}
			}
		})
	})
}

func TestRun_FrozenCacheMarksNoNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(20)
		run(t, f, func() {
			f.beat(30 * time.Second)
			f.change(func() { f.frozen = true })
			f.beat(time.Minute)
			f.thaw()
			f.beat(30 * time.Second)
		})
		if f.writes != nil {
			t.Errorf("written: %v", f.writes)
		}
	})
}

// Watches that hang forever have emptied whole clusters.
func TestRun_CacheThatStaysBehindIsRelisted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(20)
		metrics, err := nodehealthcontroller.NewMetrics(nil)
		if err != nil {
			t.Fatal(err)
		}
		loop := nodehealthcontroller.New(config(t, metrics, 1))
		over := make(chan struct{})
		go func() {
			defer close(over)
			f.beat(30 * time.Second)
			f.change(func() { f.frozen = true })
			f.beat(5 * time.Minute)
		}()
		err = loop.Run(t.Context(), f.cluster(heldShards(t.Context(), 0)), func(error) {})
		if err == nil || !strings.Contains(err.Error(), "listed anew") {
			t.Errorf("run ended with %v", err)
		}
		<-over
		if f.relists != 1 {
			t.Errorf("the cache was relisted %d times, want once", f.relists)
		}
		if f.writes != nil {
			t.Errorf("written: %v", f.writes)
		}
	})
}

func TestRun_OutageOfKubeAPIServerMarksNoNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(20)
		run(t, f, func() {
			f.beat(30 * time.Second)
			f.change(func() { f.down = true })
			f.beat(5 * time.Minute)
			f.change(func() { f.down = false })
			time.Sleep(40 * time.Second) // kubelets need their time to come back
			f.beat(time.Minute)
		})
		if f.writes != nil {
			t.Errorf("written: %v", f.writes)
		}
	})
}

func TestRun_PausedProcessMarksNoNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(20)
		run(t, f, func() {
			f.beat(30 * time.Second)
			hang := true
			f.onEvent = func() {
				if hang {
					hang = false
					time.Sleep(10 * time.Minute) // by the goroutine that decides
				}
			}
			f.change(func() { f.add("new") })
			time.Sleep(10*time.Minute + time.Second)
			f.beat(time.Minute)
		})
		if f.writes != nil {
			t.Errorf("written: %v", f.writes)
		}
	})
}

func TestRun_HangingWriteDelaysNoOtherNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(20)
		run(t, f, func() {
			f.change(func() { f.stuck["n0"], f.stuck["n1"] = true, true })
			f.beat(51*time.Second, "n0", "n1", "n2")
			if got := f.ready("n2"); got != corev1.ConditionUnknown {
				t.Errorf("Ready of n2 is %s", got)
			}
			f.change(func() { f.stuck["n0"] = false })
			f.beat(15*time.Second, "n0", "n1", "n2")
			if got := f.ready("n0"); got != corev1.ConditionUnknown {
				t.Errorf("after its writes work again Ready of n0 is %s", got)
			}
		})
	})
}

// The answer of kube-apiserver counts at once: a cache that lags causes no second decision.
func TestRun_LaggingWatchCausesNoSecondWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(1)
		f.add("other")
		run(t, f, func() {
			f.beat(50*time.Second, "n0")
			f.change(func() { f.frozen = true })
			time.Sleep(5 * time.Second)
			f.thaw()
			time.Sleep(time.Second)
		})
		f.expectWrites(t, "mark-unknown n0", "add-no-execute n0", "unready pod-n0")
	})
}

func TestRun_ConflictIsRetriedOnTheNewObject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		run(t, f, func() {
			f.change(func() { f.frozen = true })
			f.report("n0", corev1.ConditionFalse) // not seen
			f.change(func() {
				node := f.cached.nodes["n0"].DeepCopy()
				node.Spec.Unschedulable = true
				f.cached.nodes["n0"] = node
				f.changed["n0"] = struct{}{}
			})
			time.Sleep(time.Second)
			if got := f.written(); got != nil {
				t.Errorf("written from an old object: %v", got)
			}
			f.thaw()
			time.Sleep(2 * time.Second)
		})
		f.expectWrites(t, "add-no-execute n0")
	})
}

// A kubelet sends its own Event if its node is not ready. Here only nodes that were marked Unknown
// get one.
func TestRun_OnlyMarkedNodesGetAnEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		run(t, f, func() {
			f.report("n0", corev1.ConditionFalse)
			f.beat(2 * time.Second)
			f.report("n0", corev1.ConditionTrue)
			f.beat(10 * time.Second)
			f.beat(52*time.Second, "n1")
		})
		if diff := cmp.Diff([]string{"not ready n1", "not ready pod-n1"}, f.events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestRun_AddedAndDeletedNodesGetAnEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(2)
		registry := run(t, f, func() {
			f.change(func() { f.add("new") })
			time.Sleep(time.Second)
			f.change(func() {
				delete(f.live.nodes, "n0")
				f.deliver("n0")
			})
			time.Sleep(time.Second)
		})
		if diff := cmp.Diff([]string{"registered new", "removed n0"}, f.events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		for name, value := range sample(t, registry) {
			if strings.HasPrefix(name, "node_collector_zone") {
				t.Errorf("after the term there still is %s %v", name, value)
			}
		}
	})
}

func TestRun_MetricsAreThoseOfKubernetes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		registry := prometheus.NewRegistry()
		metrics, err := nodehealthcontroller.NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		loop := nodehealthcontroller.New(config(t, metrics, 1))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- loop.Run(ctx, f.cluster(heldShards(t.Context(), 0)), func(error) {})
		}()
		f.beat(55*time.Second, "n0")
		got := sample(t, registry)
		for name, want := range map[string]float64{
			"node_collector_evictions_total": 1, "node_collector_unhealthy_nodes_in_zone": 1, "node_collector_zone_health": 75,
			"node_collector_zone_size": 4, "node_collector_update_node_health_duration_seconds": 2,
			"trivet_node_health alive": 3, "trivet_node_health dead": 1, "trivet_node_writes_total ok mark-unknown": 1,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// sample returns all series by name and labels, histograms by their number of samples.
func sample(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name = strings.TrimSpace(name + " " + label.GetValue())
			}
			series[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return series
}

func TestRun_ReportsFailuresThatAnotherReplicaMayAvoid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trouble func(*fakeCluster)
		want    string
	}{
		"nothing":                  {func(*fakeCluster) {}, "<nil>"},
		"kube-apiserver is away":   {func(f *fakeCluster) { f.down = true }, "<nil>"},
		"caches are behind":        {func(f *fakeCluster) { f.frozen = true }, "s: kube-apiserver has version"},
		"every write is forbidden": {func(f *fakeCluster) { f.forbidden = true; f.live.nodes["n1"].Spec.Unschedulable = true }, "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster(2)
				c.trouble(f)
				time.Sleep(time.Second) // the renewal is a later one
				f.change(func() { f.renew("n0") })
				if got := fmt.Sprint(lastReport(t, f, 10*time.Second)); !strings.Contains(got, c.want) {
					t.Errorf("last report is %q, want %q", got, c.want)
				}
			})
		})
	}
}

// lastReport runs a controller for a while and returns its last report.
func lastReport(t *testing.T, f *fakeCluster, d time.Duration) (last error) {
	metrics, err := nodehealthcontroller.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	loop := nodehealthcontroller.New(config(t, metrics, 1))
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	reports := 0
	cluster := f.cluster(heldShards(t.Context(), 0))
	if err := loop.Run(ctx, cluster, func(err error) { last = err; reports++ }); err != nil {
		t.Error(err)
	}
	if reports < 9 {
		t.Errorf("%d reports in %v", reports, d)
	}
	return last
}

// A Pod that is bound late, or whose status comes late, is marked as the others.
func TestRun_PodsThatComeLaterAreMarked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		run(t, f, func() {
			f.beat(52*time.Second, "n0")
			f.expectWrites(t, "mark-unknown n0", "add-no-execute n0", "unready pod-n0")
			f.change(func() {
				late := f.live.pods["pod-n1"].DeepCopy()
				late.Name, late.UID, late.Spec.NodeName = "late", "uid-late", "n0"
				f.putPod(late)
			})
			f.beat(2*time.Second, "n0")
		})
		f.expectWrites(t, "mark-unknown n0", "add-no-execute n0", "unready pod-n0", "unready late")
	})
}

func TestRun_FailedMarkOfAPodIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		f.stuck["pod-n0"] = true
		run(t, f, func() {
			f.beat(60*time.Second, "n0")
			f.expectWrites(t, "mark-unknown n0", "add-no-execute n0")
			f.change(func() { delete(f.stuck, "pod-n0") })
			f.beat(15*time.Second, "n0")
		})
		f.expectWrites(t, "mark-unknown n0", "add-no-execute n0", "unready pod-n0")
	})
}
