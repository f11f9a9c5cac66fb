package nodehealthcontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/pauseclock"
)

// tolerance is how long the owner may go without reading its clock: it does so with every tick, so whoever reads it later than
// that was not running.
const tolerance = 5 * Tick

// watch is one Run. Its fields belong to the goroutine in run, but for the channels by which the workers hear and speak.
type watch struct {
	Config
	Cluster
	report func(error)

	clock    pauseclock.Clock
	now      nodehealth.Moment
	memory   nodehealth.ClusterState
	subjects []nodehealth.NodeState // ordered by name
	members  uint64                 // numbers the sets of Nodes in subjects
	// held are the terms of the shards, by number, nil for those of others; charges say the same to the core. turnover is closed
	// when that has changed.
	held     []*heldshards.Shard
	charges  []nodehealth.Ownership
	turnover <-chan struct{}
	// answered are Nodes as the kube-apiserver returned them, until the watch has them as new.
	answered map[string]*corev1.Node
	pauses   map[string]pause
	marks    map[types.UID]pause
	rounds   map[string]*round // by the names of dead nodes
	checking bool
	// checkAgain is when the next self-check may begin.
	checkAgain monotonic.Instant
	listed     bool
	roundsAt   monotonic.Instant
	reportAt   monotonic.Instant
	failed     error                  // the last write, unless one has succeeded since
	blind      nodehealth.Cause       // as last logged
	doubted    nodehealth.MassSilence // as last logged

	nodes, pods lane
	checks      chan job // done apart, so that no write delays a self-check
	results     chan result
}

// pause keeps an object from being written: while a write is under way, and for a while after one that failed.
type pause struct {
	busy     bool
	until    monotonic.Instant
	failures int
}

func newWatch(cfg Config, cluster Cluster, report func(error)) *watch {
	turnover := make(chan struct{})
	close(turnover) // the board has not been read yet
	w := &watch{
		Config: cfg, Cluster: cluster, report: report, clock: pauseclock.Start(Tick, tolerance),
		answered: map[string]*corev1.Node{}, pauses: map[string]pause{}, marks: map[types.UID]pause{},
		rounds: map[string]*round{}, nodes: newLane(cfg.Workers), pods: newLane(cfg.Workers), checks: make(chan job, 1),
		held: make([]*heldshards.Shard, cfg.Shards), charges: make([]nodehealth.Ownership, cfg.Shards), turnover: turnover,
	}
	w.results = make(chan result, cap(w.nodes.jobs)+cap(w.pods.jobs)+cap(w.checks)+1)
	for number := range w.charges {
		w.charges[number].Shard = number
	}
	return w
}

func (w *watch) run(ctx context.Context, watched <-chan error) error {
	defer close(w.nodes.jobs)
	defer close(w.checks)
	ticker := time.NewTicker(Tick)
	defer ticker.Stop()
	for {
		w.pass()
		if blindness, blind := w.memory.Blind(); blind && blindness.Cause == nodehealth.Stale && w.now.Instant.Sub(blindness.Since) >= hopeless {
			return errHopeless
		}
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

func (w *watch) pass() {
	begin := time.Now()
	now, lost := w.clock.Read()
	if w.now = (nodehealth.Moment{Instant: now, Wall: w.clock.WallTime(now, now)}); lost > 0 {
		w.Logger.Warn("node health did not run for a while, which is not held against the nodes", "for", lost)
		w.memory = w.memory.Delayed(now)
	}
	w.follow()
	w.listen()
	w.observe()
	plan, memory := w.Rules.Plan(w.now, w.memory, w.subjects, nodehealth.Authority{MaxSteps: w.nodes.room(), HoldsZones: w.held[ZoneShard] != nil})
	w.memory = memory
	for _, step := range plan.Steps {
		w.start(step)
	}
	w.check(plan.SelfCheck)
	if _, blind := w.memory.Blind(); !blind {
		w.markPods(plan.Dead)
	}
	w.publish(&plan)
	w.Metrics.observe(&plan, w.memory, w.held[ZoneShard] != nil, time.Since(begin))
	w.tell(&plan)
}

// observe takes in what changed, and what may be written again.
func (w *watch) observe() {
	changed := map[string]struct{}{}
	maps.Copy(changed, w.Cache.Changed())
	maps.Copy(changed, w.Sessions.Changed())
	w.admit(changed)
	vanished := false
	for name := range changed {
		w.see(name)
		vanished = vanished || w.Cache.Node(name) == nil
	}
	if vanished {
		w.members++
		w.subjects = slices.DeleteFunc(w.subjects, w.gone)
	}
	for name, p := range w.pauses {
		if !p.busy && w.now.Instant >= p.until {
			w.release(name)
		}
	}
}

// admit makes subjects of new Nodes, all at once, so that a large cluster is sorted once and not once for each.
func (w *watch) admit(changed map[string]struct{}) {
	var added []nodehealth.NodeState
	for name := range changed {
		node := w.Cache.Node(name)
		if _, known := w.place(name); known || node == nil {
			continue
		}
		_, busy := w.pauses[name] // of an earlier Node of that name
		s := nodehealth.NodeState{Busy: busy, Ownership: w.charges[w.ShardOf(name)]}
		added = append(added, w.Rules.Observe(w.now.Instant, s, w.observation(node)))
		if w.listed && s.Ownership.Held {
			w.Events.NodeRegistered(node)
		}
	}
	w.listed = true
	if len(added) > 0 {
		w.members++
		w.subjects = append(w.subjects, added...)
		slices.SortFunc(w.subjects, func(a, b nodehealth.NodeState) int { return cmp.Compare(a.Node.Name, b.Node.Name) })
	}
}

// gone drops a subject whose Node does not exist any more. A write may still be under way, so its pause stays until that is over.
func (w *watch) gone(s nodehealth.NodeState) bool {
	if w.Cache.Node(s.Node.Name) != nil {
		return false
	}
	delete(w.answered, s.Node.Name)
	if s.Ownership.Held {
		w.Events.NodeRemoved(s.Node)
	}
	return true
}

// see brings one subject up to date.
func (w *watch) see(name string) {
	node := w.Cache.Node(name)
	place, known := w.place(name)
	if node == nil || !known {
		return
	}
	if answer := w.answered[name]; answer == nil || !nodehealth.NewerNode(answer, node) {
		delete(w.answered, name)
	} else {
		node = answer
	}
	s := &w.subjects[place]
	ready, of := s.Ready(), s.Node.UID
	*s = w.Rules.Observe(w.now.Instant, *s, w.observation(node))
	// A kubelet that reports itself not ready tells so in an Event of its own.
	if s.Ownership.Held && ready == corev1.ConditionTrue && s.Ready() == corev1.ConditionUnknown && of == node.UID {
		w.Events.NodeNotReady(node)
	}
}

func (w *watch) observation(node *corev1.Node) nodehealth.Observation {
	session, written := w.Sessions.Session(node.Name)
	return nodehealth.Observation{Node: node, Lease: w.Cache.Lease(node.Name), Session: session, WrittenVersion: written}
}

func (w *watch) place(name string) (place int, known bool) {
	return slices.BinarySearchFunc(w.subjects, name, func(s nodehealth.NodeState, name string) int {
		return cmp.Compare(s.Node.Name, name)
	})
}

// release lets a node be written again. Earlier failures are forgotten when they led to no further try for long.
func (w *watch) release(name string) {
	place, known := w.place(name)
	if known {
		w.subjects[place].Busy = false
	}
	if p := w.pauses[name]; !known || p.failures == 0 || w.now.Instant >= p.until.Add(pauseMax) {
		delete(w.pauses, name)
	}
}

// tell logs how well it sees, and reports every second.
func (w *watch) tell(plan *nodehealth.Plan) {
	blindness, blind := w.memory.Blind()
	lasting := blind && w.now.Instant.Sub(blindness.Since) >= patience
	w.tellOfSight(blindness, blind, lasting)
	if !plan.MassSilence.Equal(w.doubted) {
		w.doubted = plan.MassSilence
		w.Logger.Warn("many nodes of a zone or shard fell silent together, so a self-check comes first", "zones", plan.MassSilence.Zones,
			"shards", plan.MassSilence.Shards, "held", plan.Held)
	}
	if w.now.Instant < w.reportAt {
		return
	}
	w.reportAt = w.now.Instant.Add(reportEvery)
	w.forgetMarks()
	var err error
	switch {
	case lasting && blindness.Cause == nodehealth.Stale:
		err = fmt.Errorf("the cache of Leases is behind for %v: %s", w.now.Instant.Sub(blindness.Since).Round(time.Second), blindness.Detail)
	case w.struggles():
		err = w.failed
	}
	w.report(err)
}

// struggles tells whether anything waits after a failure; what failed may be gone.
func (w *watch) struggles() bool {
	failing := func(p pause) bool { return p.failures > 0 }
	return slices.ContainsFunc(slices.Collect(maps.Values(w.pauses)), failing) ||
		slices.ContainsFunc(slices.Collect(maps.Values(w.marks)), failing)
}

func (w *watch) tellOfSight(blindness nodehealth.Blindness, blind, lasting bool) {
	switch {
	case lasting && w.blind != blindness.Cause:
		w.blind = blindness.Cause
		w.Logger.Warn("node health is blind and declares nobody", "cause", blindness.Cause, "detail", blindness.Detail)
	case !blind && w.blind != "":
		w.blind = ""
		w.Logger.Info("node health sees again")
	}
}
