package nodehealthcontroller_test

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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// probing is a cluster with node health and sessions as leasesvc has them. In mode "probe" the
// kubelets renew their Leases, and n0 and n1 have an agent that observes the kubelet every five
// seconds. In mode "endpoint" each Node has an agent that beats when its kubelet renews.
type probing struct {
	*fakeCluster
	t        *testing.T
	mode     string
	sessions *sessioncontroller.Controller
	registry *prometheus.Registry

	mu sync.Mutex // guards what follows
	// deadKubelets renew nothing and answer no agent. deadAgents send no beats. deaf agents do not
	// reach their kubelet.
	deadKubelets, deadAgents, deaf map[string]bool
	// cutOff kubelets answer their agent and reach no kube-apiserver.
	cutOff map[string]bool
	// failing is since when the requests of a kubelet fail, as its agent sees.
	failing map[string]time.Time
}

// probe runs a story in a bubble. All clients stop after it.
func probe(t *testing.T, story func(*probing)) { runAgents(t, "probe", story) }

func runAgents(t *testing.T, mode string, story func(*probing)) {
	synctest.Test(t, func(t *testing.T) {
		p := &probing{
			fakeCluster: newFakeCluster(6), t: t, mode: mode, registry: prometheus.NewRegistry(), failing: map[string]time.Time{},
			deadKubelets: map[string]bool{}, deadAgents: map[string]bool{}, deaf: map[string]bool{}, cutOff: map[string]bool{},
			sessions: sessioncontroller.New(sessioncontroller.Config{
				Classes: []sessioncontroller.Class{{
					Namespace: corev1.NamespaceNodeLease,
					Session:   session.Class{Name: "node", Interval: 5 * time.Second, Suspect: 7500 * time.Millisecond, TTL: 20 * time.Second, Retention: time.Hour},
					Writes:    writeback.Policy{Mode: writeback.OnChange, Renew: 5 * time.Minute, Duration: 500 * time.Second},
				}},
				Shards: 1, Limit: 100, Logger: slog.New(slog.DiscardHandler),
			}),
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		tracker := nodehealthcontroller.NewSessionTracker([]bool{true})
		terms := heldShards(ctx, 0)
		held, _ := terms.Get(0)
		cluster := p.cluster(terms)
		cluster.Sessions = tracker
		metrics, err := nodehealthcontroller.NewMetrics(p.registry)
		if err != nil {
			t.Fatal(err)
		}
		run := func(what string, part func() error) {
			running.Go(func() {
				if err := part(); err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		run("sessions", func() error { return p.sessions.Run(ctx) })
		run("shard", func() error { return p.sessions.RunShard(held) })
		run("node health", func() error { return nodehealthcontroller.New(config(t, metrics, 1)).Run(ctx, cluster, func(error) {}) })
		running.Go(func() {
			tracker.Run(ctx, func() nodehealthcontroller.SessionWatcher { return p.sessions })
		})
		agents := 6
		if mode == "probe" {
			agents = 2
			for i := range 6 {
				running.Go(func() { p.kubelet(ctx, fmt.Sprintf("n%d", i), time.Duration(i)*1700*time.Millisecond) })
			}
		}
		for i := range agents {
			running.Go(func() { p.agent(ctx, fmt.Sprintf("n%d", i)) })
		}
		time.Sleep(2 * time.Minute)
		p.expectWrites(t)
		story(p)
	})
}

func (p *probing) is(set map[string]bool, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return set[name]
}

func (p *probing) put(set map[string]bool, name string, is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set[name] = is
}

func (p *probing) kubelet(ctx context.Context, name string, phase time.Duration) {
	for wait := phase; ; wait = 10 * time.Second {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if p.is(p.deadKubelets, name) || p.is(p.cutOff, name) {
			continue
		}
		p.change(func() {
			p.live.leases[name] = nodehealth.Lease{Version: p.next(), RenewTime: time.Now(), Duration: 40 * time.Second}
			p.deliver(name)
		})
	}
}

// agent observes its kubelet and reports the age of the last observation.
func (p *probing) agent(ctx context.Context, name string) {
	observed := time.Now()
	for sequence := uint64(1); ; sequence++ {
		if !p.is(p.deadKubelets, name) && !p.is(p.deaf, name) {
			observed = time.Now()
		}
		if !p.is(p.deadAgents, name) {
			batch := sessioncontroller.NewBatch()
			batch.Registrations = []sessioncontroller.Registration{{
				Holder: session.Holder{Key: session.Key{Name: name}, Boot: "1"}, Sequence: sequence,
				Report: p.reportOf(name, observed), Agent: session.Agent{Name: "trivet-agent", Mode: p.mode},
			}}
			if err := p.sessions.Process(ctx, batch); err != nil && ctx.Err() == nil {
				p.t.Error(err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(p.interval()):
		}
	}
}

func (p *probing) interval() time.Duration {
	if p.mode == "probe" {
		return 5 * time.Second
	}
	return 10 * time.Second
}

func (p *probing) reportOf(name string, observed time.Time) *sessioncontroller.Report {
	report := &sessioncontroller.Report{Observed: true, ObservedAge: time.Since(observed)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if since, fails := p.failing[name]; fails {
		report.CutOff, report.CutOffAge = true, time.Since(since)
	}
	return report
}

// fail lets all requests of kubelets fail from now on.
func (p *probing) fail(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		p.failing[name] = time.Now()
	}
}

// unknownAfter returns when a node is marked Unknown, at most after a limit; 0 for not at all.
func (p *probing) unknownAfter(name string, limit time.Duration) time.Duration {
	for begin := time.Now(); time.Since(begin) < limit; time.Sleep(10 * time.Millisecond) {
		if p.ready(name) == corev1.ConditionUnknown {
			return time.Since(begin)
		}
	}
	return 0
}

func TestRun_NodesThatAreCutOffOnOneOfTwoWaysAreCounted(t *testing.T) {
	t.Parallel()
	probe(t, func(p *probing) {
		p.put(p.deadAgents, "n0", true)
		p.put(p.cutOff, "n1", true)
		time.Sleep(time.Minute)
		p.expectCutOff(t, 1)
		p.put(p.deadKubelets, "n0", true)
		p.put(p.cutOff, "n1", false)
		time.Sleep(time.Minute)
		p.expectCutOff(t, 0) // a dead node is not cut off
	})
}

// expectCutOff expects as many nodes that are cut off on each of the two ways.
func (p *probing) expectCutOff(t *testing.T, count int) {
	t.Helper()
	const name = "trivet_node_cut_off"
	const help = "Nodes of the held shards whose kubelet reaches no kube-apiserver while the agent beats, or whose agent reaches no leasesvc while the kubelet lives."
	want := fmt.Sprintf("# HELP %[1]s %[3]s\n# TYPE %[1]s gauge\n%[1]s{from=\"kube-apiserver\"} %[2]d\n%[1]s{from=\"leasesvc\"} %[2]d\n", name, count, help)
	if err := testutil.GatherAndCompare(p.registry, strings.NewReader(want), name); err != nil {
		t.Error(err)
	}
}

func TestRun_DeadKubeletBesideALivingAgentIsMarkedWithinTheGraceOfItsSession(t *testing.T) {
	t.Parallel()
	for phase := range 10 {
		probe(t, func(p *probing) {
			time.Sleep(time.Duration(phase) * 1013 * time.Millisecond)
			p.put(p.deadKubelets, "n0", true)
			switch after := p.unknownAfter("n0", time.Minute); {
			case after == 0 || after > 20500*time.Millisecond:
				t.Errorf("n0 was marked %v after its kubelet died", after)
			case after < 10*time.Second: // its last sign may be ten seconds old
				t.Errorf("n0 was marked only %v after its kubelet died", after)
			}
			if got := p.ready("n1"); got != corev1.ConditionTrue {
				t.Errorf("n1 is %s", got)
			}
		})
	}
}

func TestRun_KubeletThatRenewsItsLeaseIsNotMarkedWhateverItsAgentSays(t *testing.T) {
	t.Parallel()
	probe(t, func(p *probing) {
		p.put(p.deaf, "n0", true)
		p.put(p.deadAgents, "n1", true)
		time.Sleep(10 * time.Minute)
		p.expectWrites(t)
	})
}

func TestRun_PowerCutBesideAProbingAgentIsMarkedWithinTheGraceOfItsSession(t *testing.T) {
	t.Parallel()
	probe(t, func(p *probing) {
		p.put(p.deadKubelets, "n0", true)
		p.put(p.deadAgents, "n0", true)
		if after := p.unknownAfter("n0", 2*time.Minute); after < 10*time.Second || after > 20500*time.Millisecond {
			t.Errorf("n0 was marked %v after its power was cut", after)
		}
	})
}

// The agent says for eight seconds that the kubelet is silent, and falls silent itself.
func TestRun_AgentThatFallsSilentAfterItsKubeletDelaysNothing(t *testing.T) {
	t.Parallel()
	probe(t, func(p *probing) {
		p.put(p.deadKubelets, "n0", true)
		time.Sleep(8 * time.Second)
		p.put(p.deadAgents, "n0", true)
		if after := p.unknownAfter("n0", 2*time.Minute); after == 0 || after > 12500*time.Millisecond {
			t.Errorf("n0 was marked %v after its agent died", after)
		}
	})
}

// kube-apiserver answers reads and takes no writes, so no kubelet renews its Lease.
func TestRun_WritesThatKubeAPIServerDoesNotTakeMarkNoNodeThatItsAgentReportsSilent(t *testing.T) {
	t.Parallel()
	probe(t, func(p *probing) {
		p.put(p.deaf, "n0", true)
		time.Sleep(time.Minute)
		for i := range 6 {
			p.put(p.deadKubelets, fmt.Sprintf("n%d", i), true)
		}
		p.change(func() { p.unwritable = errors.New("no space left") })
		time.Sleep(30 * time.Second)
		p.change(func() { p.unwritable = nil })
		for i := range 6 {
			p.put(p.deadKubelets, fmt.Sprintf("n%d", i), false)
		}
		time.Sleep(5 * time.Minute)
		p.expectWrites(t)
	})
}

// A watch that shows no Lease for a while marks no node that its agent reports silent.
func TestRun_LateWatchMarksNoNodeThatItsAgentReportsSilent(t *testing.T) {
	t.Parallel()
	probe(t, func(p *probing) {
		p.put(p.deaf, "n0", true)
		time.Sleep(time.Minute)
		p.change(func() { p.frozen = true })
		time.Sleep(45 * time.Second)
		p.thaw()
		time.Sleep(5 * time.Minute)
		p.expectWrites(t)
	})
}

// A probed kubelet that reaches no kube-apiserver is marked after the grace period, and its problem
// has its name.
func TestRun_KubeletThatIsCutOffIsMarkedAfterTheGracePeriod(t *testing.T) {
	t.Parallel()
	probe(t, func(p *probing) {
		p.put(p.cutOff, "n0", true)
		if after := p.unknownAfter("n0", 2*time.Minute); after < 40*time.Second || after > 50500*time.Millisecond {
			t.Errorf("n0 was marked %v after it was cut off", after)
		}
		time.Sleep(5 * time.Minute)
		p.expectWrites(t, "mark-unknown n0", "add-no-execute n0", "unready pod-n0")
	})
}

// An agent in endpoint mode writes the Lease of its kubelet, so only its reports show that the
// kubelet reaches no kube-apiserver.
func TestRun_KubeletWhoseRequestsAllFailIsMarkedAfterTheGracePeriod(t *testing.T) {
	t.Parallel()
	for phase := range 10 {
		runAgents(t, "endpoint", func(p *probing) {
			time.Sleep(time.Duration(phase) * 1013 * time.Millisecond)
			p.fail("n0")
			if after := p.unknownAfter("n0", 2*time.Minute); after < 50*time.Second || after > 50500*time.Millisecond {
				t.Errorf("n0 was marked %v after its requests began to fail", after)
			}
			time.Sleep(5 * time.Minute)
			p.expectWrites(t, "mark-unknown n0", "add-no-execute n0", "unready pod-n0")
			p.mu.Lock()
			clear(p.failing)
			p.mu.Unlock()
			time.Sleep(11 * time.Second)
			p.report("n0", corev1.ConditionTrue)
			time.Sleep(5 * time.Minute)
			if got := p.ready("n0"); got != corev1.ConditionTrue {
				t.Errorf("n0 is %s after its requests were served", got)
			}
		})
	}
}

// What no kubelet can do is no fault of one of them.
func TestRun_NoKubeletWhoseRequestsFailIsMarkedWhileTheyAllDo(t *testing.T) {
	t.Parallel()
	runAgents(t, "endpoint", func(p *probing) {
		p.fail("n0", "n1", "n2", "n3", "n4", "n5")
		time.Sleep(10 * time.Minute)
		p.expectWrites(t)
	})
}

// The requests of a kubelet fail again and again, never for the grace period.
func TestRun_KubeletWhoseRequestsAreServedNowAndThenIsNotMarked(t *testing.T) {
	t.Parallel()
	runAgents(t, "endpoint", func(p *probing) {
		for range 20 {
			p.fail("n0")
			time.Sleep(31 * time.Second)
		}
		p.expectWrites(t)
	})
}
