package evictioncontroller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// run is one term. Its fields belong to the goroutine that passes, except jobs and results, and
// origin, which is constant.
type run struct {
	Config
	Cluster
	report    func(error)
	published *atomic.Pointer[snapshot]

	origin time.Time // of Instants
	now    monotonic.Instant
	// nodes are all Nodes, pending those with pending Pods.
	nodes   map[string]eviction.NodeEvictions
	pending map[string]eviction.NodeEvictions
	// unreliable is why node health is; zero if it is not.
	unreliable nodehealth.Delay
	// live are Nodes as they were read past the cache, until the cache has them.
	live      map[string]*corev1.Node
	attempts  map[types.UID]attempt
	behind    behindPods
	rateLimit eviction.RateLimit
	changed   bool  // since the last snapshot
	failed    error // of the last eviction

	heldOn   []string // the Nodes with held Pods
	reportAt monotonic.Instant

	jobs    chan job
	results chan result
	free    int // how many more jobs fit
}

func newRun(cfg Config, cluster Cluster, report func(error), published *atomic.Pointer[snapshot]) *run {
	size := 4 * cfg.Workers
	return &run{
		Config: cfg, Cluster: cluster, report: report, published: published, origin: time.Now(),
		nodes: map[string]eviction.NodeEvictions{}, pending: map[string]eviction.NodeEvictions{},
		live: map[string]*corev1.Node{}, attempts: map[types.UID]attempt{}, behind: behindPods{}, changed: true,
		jobs: make(chan job, size), results: make(chan result, size), free: size,
	}
}

func (r *run) start(ctx context.Context, workers *sync.WaitGroup) {
	for range r.Workers {
		workers.Go(func() { r.work(ctx) })
	}
}

func (r *run) end() {
	close(r.jobs)
	r.published.Store(nil)
	r.Metrics.reset()
}

func (r *run) pass() error {
	r.now = r.instant(time.Now())
	r.collectResults()
	for name := range r.Cache.Changed() {
		r.observe(name)
	}
	r.askNodeHealth()
	r.forgetAttempts()
	plan := r.Rules.Plan(r.now, eviction.State{
		Nodes: r.pending, Unreliable: r.unreliable.Active(), Paused: r.paused(), RateLimit: r.rateLimit,
	}, r.free)
	r.rateLimit = plan.RateLimit
	for _, e := range plan.Evictions {
		r.evict(e)
	}
	r.noteHeld(&plan)
	if r.changed {
		r.changed = false
		r.published.Store(r.snapshot())
	}
	r.Metrics.observe(&plan)
	r.reportFailure()
	return nil
}

func (r *run) instant(t time.Time) monotonic.Instant { return monotonic.Instant(t.Sub(r.origin)) }

// observe takes in a Node and its Pods. Most changes are of Pods on Nodes without taints, so these
// must be cheap.
func (r *run) observe(name string) {
	node := r.Cache.Node(name)
	if live := r.live[name]; live != nil && node != nil && nodehealth.NewerNode(live, node) {
		node = live
	} else {
		delete(r.live, name)
	}
	before, known := r.nodes[name]
	if node == nil {
		delete(r.nodes, name)
		r.setPending(name, eviction.NodeEvictions{})
		return
	}
	var pods []*corev1.Pod
	if hasNoExecute(node) || len(before.Pending) > 0 {
		pods = r.Cache.Pods(name)
	} else if known && before.UID == node.UID && len(before.Taints) == 0 {
		return
	}
	now := time.Now() // not before the cache was read: what is new in it counts from now at the earliest
	after := before.Observe(r.instant(now), now, node, pods)
	for _, cancelled := range before.Cancelled(after, pods) {
		pod := cancelled.Pod
		r.Logger.Info("eviction cancelled", "pod", pod.Namespace+"/"+pod.Name, "node", name, "taint", cancelled.Taint.ToString())
		r.Metrics.cancelled()
		r.Events.EvictionCancelled(cancelled)
		r.record(decisions.EvictionCancelled, name, pod, "the taint "+cancelled.Taint.ToString()+" does not evict it any more")
	}
	r.recordScheduled(name, before, after)
	r.nodes[name] = after
	r.setPending(name, after)
}

func hasNoExecute(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute })
}

func (r *run) setPending(name string, node eviction.NodeEvictions) {
	_, was := r.pending[name]
	if len(node.Pending) == 0 {
		delete(r.pending, name)
		r.changed = r.changed || was
		return
	}
	r.pending[name], r.changed = node, true
}

// askNodeHealth learns whether node health is reliable.
func (r *run) askNodeHealth() {
	if r.NodeHealth == nil {
		return
	}
	hold := r.NodeHealth.TaintHold()
	r.changed = r.changed || hold != r.unreliable
	r.unreliable = hold
}

// noteHeld logs when the set of Nodes with held Pods changes.
func (r *run) noteHeld(plan *eviction.Plan) {
	if slices.Equal(plan.HeldOn, r.heldOn) {
		return
	}
	r.heldOn, r.changed = plan.HeldOn, true
	if plan.Held == 0 {
		r.Logger.Info("no eviction is held any more")
		r.Decisions.Record(decisions.Decision{Action: decisions.EvictionsResumed, Message: "no eviction is held any more"})
		return
	}
	node := plan.HeldOn[0]
	r.Logger.Warn("due evictions are held while node health is unreliable", "pods", plan.Held, "nodes", len(plan.HeldOn),
		"node", node, "reason", r.unreliable.Reason)
	r.Decisions.Record(decisions.Decision{Action: decisions.EvictionsHeld, Message: fmt.Sprintf(
		"%d due evictions on %d nodes wait while node health is unreliable, first on %q: %s", plan.Held, len(plan.HeldOn), node, r.unreliable.Reason)})
}

func (r *run) reportFailure() {
	if r.now < r.reportAt {
		return
	}
	r.reportAt = r.now.Add(reportEvery)
	if !r.retries() {
		r.failed = nil
	}
	err := r.failed
	if err == nil {
		err = r.reportBehind()
	}
	r.report(err)
}
