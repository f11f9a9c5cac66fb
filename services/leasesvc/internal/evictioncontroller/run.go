package evictioncontroller

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// round is one term. Its fields belong to the goroutine in run, but for jobs and results, by which the workers hear and speak,
// and origin, which nobody writes.
type round struct {
	Config
	Cluster
	report  func(error)
	publish func(*snapshot)

	origin time.Time
	now    monotonic.Instant
	// wards are those of all Nodes, tainted those among them that have pods waiting, with their Nodes' zones.
	wards   map[string]eviction.NodeEvictions
	tainted map[string]eviction.NodeEvictions
	zones   map[string]string
	doubted map[string]string
	// answered are Nodes as they were read past the cache, until that has them as new.
	answered map[string]*corev1.Node
	tries    map[types.UID]try
	pace     eviction.RateLimit
	changed  bool  // since the last snapshot
	failed   error // the last eviction, unless one has succeeded since

	heldOn   []string // as last logged
	reportAt monotonic.Instant

	jobs    chan eviction.Eviction
	results chan result
	free    int // how many more jobs there is room for
}

func newRound(cfg Config, cluster Cluster, report func(error)) *round {
	room := 4 * cfg.Workers
	return &round{
		Config: cfg, Cluster: cluster, report: report, publish: func(*snapshot) {}, origin: time.Now(),
		wards: map[string]eviction.NodeEvictions{}, tainted: map[string]eviction.NodeEvictions{}, zones: map[string]string{},
		doubted: map[string]string{}, answered: map[string]*corev1.Node{}, tries: map[types.UID]try{}, changed: true,
		jobs: make(chan eviction.Eviction, room), results: make(chan result, room), free: room,
	}
}

func (r *round) run(ctx context.Context, watched <-chan error) error {
	defer close(r.jobs)
	ticker := time.NewTicker(Tick)
	defer ticker.Stop()
	for {
		r.pass()
		select {
		case <-ctx.Done():
			return nil
		case err := <-watched:
			if ctx.Err() != nil {
				return nil
			}
			return errors.Join(errEnded, err)
		case <-ticker.C:
		}
	}
}

func (r *round) pass() {
	r.now = r.instant(time.Now())
	r.listen()
	for name := range r.Cache.Changed() {
		r.see(name)
	}
	r.ask()
	r.forget()
	plan := r.Rules.Plan(r.now, eviction.State{
		Nodes: r.tainted, Unreliable: r.doubted, Paused: r.paused(), RateLimit: r.pace,
	}, r.free)
	r.pace = plan.RateLimit
	for _, e := range plan.Evictions {
		r.start(e)
	}
	if r.changed {
		r.changed = false
		r.publish(r.snapshot())
	}
	r.Metrics.observe(&plan)
	r.tell(&plan)
}

func (r *round) instant(t time.Time) monotonic.Instant { return monotonic.Instant(t.Sub(r.origin)) }

// see takes in a Node and its pods. Most of what changes are pods on Nodes without taints, which costs a glance.
func (r *round) see(name string) {
	node := r.Cache.Node(name)
	if answer := r.answered[name]; answer != nil && node != nil && nodehealth.NewerNode(answer, node) {
		node = answer
	} else {
		delete(r.answered, name)
	}
	before, known := r.wards[name]
	if node == nil {
		delete(r.wards, name)
		r.keep(name, "", eviction.NodeEvictions{})
		return
	}
	pods := []*corev1.Pod(nil)
	if len(node.Spec.Taints) > 0 || len(before.Pending) > 0 {
		pods = r.Cache.Pods(name)
	} else if known && before.UID == node.UID && len(before.Taints) == 0 {
		return
	}
	now := time.Now() // not before it was read: what came with it counts from now at the earliest
	after := before.Observe(r.instant(now), now, node, pods)
	for _, wait := range before.Cancelled(after, pods) {
		r.Logger.Info("pod may stay", "pod", wait.Pod.Namespace+"/"+wait.Pod.Name, "node", name, "taint", wait.Taint.ToString())
		r.Metrics.spared()
		r.Events.EvictionCancelled(wait)
	}
	r.wards[name] = after
	r.keep(name, nodehealth.ZoneOf(node.Labels), after)
}

// keep keeps a Ward among those that have pods waiting, or takes it out.
func (r *round) keep(name, zone string, ward eviction.NodeEvictions) {
	_, was := r.tainted[name]
	if len(ward.Pending) == 0 {
		delete(r.tainted, name)
		delete(r.zones, name)
		r.changed = r.changed || was
		return
	}
	r.tainted[name], r.zones[name], r.changed = ward, zone, true
}

// ask finds the Nodes whose taints node health doubts.
func (r *round) ask() {
	doubted, asked := map[string]string{}, map[string]string{}
	for name, zone := range r.zones {
		why, known := asked[zone]
		if !known {
			if reason, doubt := r.NodeHealth.TaintsUnreliable(zone); doubt {
				why = cmp.Or(reason, "node health is in doubt")
			}
			asked[zone] = why
		}
		if why != "" {
			doubted[name] = why
		}
	}
	r.changed = r.changed || !maps.Equal(doubted, r.doubted)
	r.doubted = doubted
}

// tell logs for whom it waits, and reports every second.
func (r *round) tell(plan *eviction.Plan) {
	if !slices.Equal(plan.HeldOn, r.heldOn) {
		r.heldOn = plan.HeldOn
		if plan.Held > 0 {
			node := plan.HeldOn[0]
			r.Logger.Warn("pods stay although they are due, as node health is in doubt", "pods", plan.Held, "nodes", len(plan.HeldOn),
				"node", node, "why", r.doubted[node])
		} else {
			r.Logger.Info("no pod stays because of a doubt any more")
		}
	}
	if r.now < r.reportAt {
		return
	}
	r.reportAt = r.now.Add(reportEvery)
	if !r.struggles() {
		r.failed = nil
	}
	r.report(r.failed)
}
