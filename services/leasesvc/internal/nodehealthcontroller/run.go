package nodehealthcontroller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// pauseAfter is the time between two reads of the clock from which the process counts as paused.
const pauseAfter = 5 * Tick

// run is one Run. Its fields belong to the goroutine that passes, except the channels to and from
// the workers.
type run struct {
	Config
	Cluster
	report func(error)

	clock monotonic.Clock
	now   nodehealth.Moment
	state nodehealth.ClusterState
	nodes []nodehealth.NodeState // ordered by name
	// terms are by shard; nil for shards that this replica does not hold. ownership is the same for
	// package nodehealth.
	terms     []*sessioncontroller.HeldShard
	ownership []nodehealth.Ownership
	// termsChanged is closed when HeldShards has changed.
	termsChanged <-chan struct{}
	// answers are Nodes as kube-apiserver returned them, until the cache has them.
	answers      map[string]*corev1.Node
	nodeBackoffs map[string]attempt
	podBackoffs  map[types.UID]attempt
	scans        map[string]*podScan // by the names of dead Nodes
	scanAt       monotonic.Instant
	listed       bool
	checking     bool
	checkAt      monotonic.Instant // of the next self-check, after a failed one
	checkBegun   monotonic.Instant // of the self-check that is running
	checkTimeout time.Duration     // of the next self-check
	denied       error             // of the last self-check, if kube-apiserver refused it
	// live are Leases as kube-apiserver returned them, until the cache has them. behind names the
	// Node of one of them, which the cache does not have since behindSince.
	live         map[string]nodehealth.Lease
	behind       string
	behindSince  monotonic.Instant
	reportAt     monotonic.Instant
	failed       error  // of the last write
	loggedReason string // of the suspension that was last logged
	loggedCutOff bool   // as last logged
	// evictionDelays are those of this pass, by the names of Nodes.
	evictionDelays map[string]nodehealth.Delay

	verdicts verdicts // by the names of Nodes; empty without tracing

	nodeJobs, podJobs jobQueue
	checkJobs         chan job // has its own worker, so that no write delays a self-check
	results           chan result
}

func newRun(cfg Config, cluster Cluster, report func(error)) *run {
	unread := make(chan struct{})
	close(unread) // HeldShards has not been read yet
	r := &run{
		Config: cfg, Cluster: cluster, report: report,
		verdicts: verdicts{}, answers: map[string]*corev1.Node{}, live: map[string]nodehealth.Lease{}, nodeBackoffs: map[string]attempt{}, podBackoffs: map[types.UID]attempt{},
		checkTimeout: minTimeout, scans: map[string]*podScan{}, nodeJobs: newJobQueue(cfg.Workers), podJobs: newJobQueue(cfg.Workers), checkJobs: make(chan job, 1),
		terms: make([]*sessioncontroller.HeldShard, cfg.Shards), ownership: make([]nodehealth.Ownership, cfg.Shards), termsChanged: unread,
	}
	r.results = make(chan result, cap(r.nodeJobs.jobs)+cap(r.podJobs.jobs)+cap(r.checkJobs)+1)
	for number := range r.ownership {
		r.ownership[number].Shard = number
	}
	return r
}

// start starts the clock, because the time until the cache is synced is no pause. Half of the
// workers is reserved for Nodes.
func (r *run) start(ctx context.Context, workers *sync.WaitGroup) {
	r.clock = monotonic.StartClock(Tick, pauseAfter)
	for number := range r.Workers {
		pods := r.podJobs.jobs
		if number%2 == 1 {
			pods = nil
		}
		workers.Go(func() { r.work(ctx, r.nodeJobs.jobs, pods) })
	}
	workers.Go(func() { r.work(ctx, r.checkJobs, nil) })
}

func (r *run) end() {
	close(r.checkJobs)
	close(r.nodeJobs.jobs)
	r.Publisher.Clear()
	r.Metrics.reset()
}

// pass returns an error if the cache has been behind for too long.
func (r *run) pass() error {
	begin := time.Now()
	now, paused := r.clock.Read()
	if r.now = (nodehealth.Moment{Instant: now, Wall: r.clock.WallTime(now, now)}); paused > 0 {
		r.Logger.Warn("node health was paused, which counts as no silence", "for", paused)
	}
	r.updateOwnership()
	r.collectResults()
	r.observeChanges()
	zones := r.terms[ZoneShard] != nil
	if r.checking {
		r.state = r.state.CheckRuns(r.checkBegun, r.now.Instant)
	}
	plan, state := r.Rules.Plan(r.now, r.state, r.nodes, nodehealth.Authority{
		MaxSteps: r.nodeJobs.free(), HoldsZones: zones,
	})
	r.state = state
	for _, step := range plan.Steps {
		r.startStep(step)
	}
	r.startCheck(plan.SelfCheck)
	r.markPods(plan.Dead, plan.NotReady)
	r.publish(&plan)
	snapshot := r.Publisher.Snapshot()
	r.Metrics.observe(&plan, r.state, zones, time.Since(begin))
	r.Metrics.observeCutOff(snapshot)
	r.logState(snapshot.KubeletsCutOff())
	r.reportState()
	if r.behindFor() >= relistAfter {
		r.Cache.Relist()
		return errBehind
	}
	return nil
}

// updateOwnership takes in which shards this replica holds, before all else in a pass, so that the
// pass uses the same terms throughout.
func (r *run) updateOwnership() {
	select {
	case <-r.termsChanged:
	default:
		return
	}
	r.termsChanged = r.HeldShards.Changed() // before the shards are read, so that no change is missed
	changed := false
	for number := range r.terms {
		held, _ := r.HeldShards.Get(number)
		if r.terms[number] == held {
			continue
		}
		r.terms[number], changed = held, true
		r.ownership[number] = nodehealth.Ownership{Shard: number, Held: held != nil, HeldSince: r.now.Instant}
	}
	if !changed {
		return
	}
	for i := range r.nodes {
		r.nodes[i].Ownership = r.ownership[r.nodes[i].Ownership.Shard]
	}
	r.Logger.Debug("held shards changed", "zones", r.terms[ZoneShard] != nil)
}

// observeChanges takes in what changed, and ends backoffs.
func (r *run) observeChanges() {
	changed := map[string]struct{}{}
	maps.Copy(changed, r.Cache.Changed())
	maps.Copy(changed, r.Sessions.Changed())
	r.addNodes(changed)
	deleted := false
	for name := range changed {
		r.observe(name)
		deleted = deleted || r.Cache.Node(name) == nil
	}
	if deleted {
		r.nodes = slices.DeleteFunc(r.nodes, r.dropDeleted)
	}
	for name, b := range r.nodeBackoffs {
		if !b.busy && r.now.Instant >= b.until {
			r.release(name)
		}
	}
}

// addNodes adds new Nodes all at once, so that a large cluster is sorted once.
func (r *run) addNodes(changed map[string]struct{}) {
	var added []nodehealth.NodeState
	for name := range changed {
		node := r.Cache.Node(name)
		if _, known := r.find(name); known || node == nil {
			continue
		}
		_, busy := r.nodeBackoffs[name] // of a deleted Node with that name
		s := nodehealth.NodeState{Busy: busy, Ownership: r.ownership[r.ShardOf(name)]}
		added = append(added, r.Rules.Observe(r.now.Instant, s, r.observation(node)))
		if r.listed && s.Ownership.Held {
			r.Events.NodeRegistered(node)
		}
	}
	r.listed = true
	if len(added) > 0 {
		r.nodes = append(r.nodes, added...)
		slices.SortFunc(r.nodes, func(a, b nodehealth.NodeState) int { return cmp.Compare(a.Node.Name, b.Node.Name) })
	}
}

// dropDeleted returns whether a Node was deleted. A write may still be running, so its backoff
// stays until that has ended.
func (r *run) dropDeleted(s nodehealth.NodeState) bool {
	if r.Cache.Node(s.Node.Name) != nil {
		return false
	}
	delete(r.answers, s.Node.Name)
	delete(r.live, s.Node.Name)
	delete(r.verdicts, s.Node.Name)
	if s.Ownership.Held {
		r.Events.NodeRemoved(s.Node)
	}
	return true
}

// observe updates the state of one Node.
func (r *run) observe(name string) {
	node := r.Cache.Node(name)
	index, known := r.find(name)
	if node == nil || !known {
		return
	}
	if answer := r.answers[name]; answer == nil || !nodehealth.NewerNode(answer, node) {
		delete(r.answers, name)
	} else {
		node = answer
	}
	s := &r.nodes[index]
	before, uid := s.Ready(), s.Node.UID
	*s = r.Rules.Observe(r.now.Instant, *s, r.observation(node))
	// A kubelet that reports itself not ready sends its own Event.
	if s.Ownership.Held && before == corev1.ConditionTrue && s.Ready() == corev1.ConditionUnknown && uid == node.UID {
		r.Events.NodeNotReady(node)
	}
	if uid == node.UID {
		r.recordReadiness(s, before)
	}
}

func (r *run) observation(node *corev1.Node) nodehealth.Observation {
	s := r.Sessions.Session(node.Name)
	o := nodehealth.Observation{
		Node: node, Lease: r.lease(node.Name), Session: s.State, SessionObserves: s.Observes, AgentLives: s.AgentLives,
		Agent: s.Agent, WrittenVersion: s.Written,
	}
	if !s.CutOff.IsZero() {
		o.CutOffFor = max(r.now.Wall.Sub(s.CutOff), 1)
	}
	return o
}

// lease returns the Lease of a Node as it was read last.
func (r *run) lease(node string) nodehealth.Lease {
	cached := r.Cache.Lease(node)
	live, read := r.live[node]
	if read && nodehealth.Newer(live.Version, cached.Version) {
		return live
	}
	delete(r.live, node)
	return cached
}

// observeLive takes in Leases that are newer than in the cache. A renewal in them is a sign of life
// at once.
func (r *run) observeLive(newer []nodehealth.LiveLease) {
	for _, lease := range newer {
		index, known := r.find(lease.Node)
		if !known || !nodehealth.Newer(lease.Lease.Version, r.nodes[index].LeaseVersion()) {
			continue // the Node is gone, or the answer is older than what is known
		}
		r.live[lease.Node] = lease.Lease
		if r.behind == "" {
			r.behind, r.behindSince = lease.Node, r.now.Instant
		}
		r.observe(lease.Node)
	}
}

// behindFor returns for how long the cache of Leases has been behind; 0 if it is not.
func (r *run) behindFor() time.Duration {
	r.lease(r.behind)
	if _, still := r.live[r.behind]; !still {
		r.behind = ""
		return 0
	}
	return r.now.Instant.Sub(r.behindSince)
}

func (r *run) find(name string) (index int, known bool) {
	return slices.BinarySearchFunc(r.nodes, name, func(s nodehealth.NodeState, name string) int {
		return cmp.Compare(s.Node.Name, name)
	})
}

// release allows the next write of a Node. Failures are forgotten if no write was needed for long.
func (r *run) release(name string) {
	index, known := r.find(name)
	if known {
		r.nodes[index].Busy = false
	}
	if b := r.nodeBackoffs[name]; !known || b.failures == 0 || r.now.Instant >= b.until.Add(nodestore.MaxRetryDelay) {
		delete(r.nodeBackoffs, name)
	}
}

// publish shows readers the result of the pass.
func (r *run) publish(plan *nodehealth.Plan) {
	snapshot := Snapshot{At: r.now, Zones: plan.Zones, Suspension: r.state.Suspension()}
	for id, held := range r.terms {
		if held != nil {
			snapshot.Shards.IDs = append(snapshot.Shards.IDs, id)
			snapshot.Shards.Epoch = max(snapshot.Shards.Epoch, held.Epoch())
		}
	}
	if held := r.terms[ZoneShard]; held != nil {
		snapshot.ZoneEpoch = held.Epoch()
	}
	r.evictionDelays = r.Evictions.Holds()
	r.Publisher.Publish(snapshot, r.nodes, r.result)
}

func (r *run) result(s *nodehealth.NodeState) Result {
	if !s.Ownership.Held {
		return Result{}
	}
	result := Result{
		Held: true, Epoch: r.terms[s.Ownership.Shard].Epoch(), Session: s.Session(), Agent: s.Agent(),
		Assessment: r.Rules.Assess(r.now.Instant, r.state, s), LeaseRenewed: s.LastRenewal(), StatusUpdated: s.LastStatus(),
		Eviction: r.evictionDelays[s.Node.Name],
	}
	if result.Session == session.Alive && result.Assessment.By == nodehealth.SessionBeat {
		result.Assessment.Heard = 0
	}
	return result
}

// logState logs what suspends all marks, and kubelets that are cut off, when they change.
func (r *run) logState(cutOff NamedNodes) {
	suspension := r.state.Suspension()
	switch suspended := suspension.Active(); {
	case suspended && r.now.Instant.Sub(suspension.Since) >= logHoldAfter && r.loggedReason != suspension.Reason:
		r.loggedReason = suspension.Reason
		r.Logger.Warn("marking is suspended: no node is marked Unknown", "reason", suspension.Reason, "detail", suspension.Message)
		r.Decisions.Record(decisions.Decision{
			Action: decisions.MarkingSuspended, Message: suspension.Message, InputAge: r.now.Instant.Sub(suspension.Since),
		})
	case !suspended && r.loggedReason != "":
		r.loggedReason = ""
		r.Logger.Info("marking is not suspended any more")
		r.Decisions.Record(decisions.Decision{Action: decisions.MarkingResumed, Message: "silent nodes are marked Unknown again"})
	}
	if some := cutOff.Count > 0; some != r.loggedCutOff {
		if r.loggedCutOff = some; some {
			r.Logger.Warn("kubelets whose agents live reach no kube-apiserver", "nodes", cutOff.Count, "first", cutOff.First)
		} else {
			r.Logger.Info("no kubelet whose agent lives is cut off from kube-apiserver any more")
		}
	}
}

func (r *run) reportState() {
	if r.now.Instant < r.reportAt {
		return
	}
	r.reportAt = r.now.Instant.Add(reportEvery)
	r.forgetPodBackoffs()
	var err error
	behind := r.behindFor()
	switch {
	case behind >= behindAfter:
		err = fmt.Errorf("the cache of Leases is behind for %v: kube-apiserver has version %s of the Lease of node %q", behind.Round(time.Second), r.live[r.behind].Version, r.behind)
	case r.denied != nil:
		err = r.denied
	case r.retries():
		err = r.failed
	}
	r.report(err)
}

// retries returns whether a write that failed is to be retried.
func (r *run) retries() bool {
	failing := func(b attempt) bool { return b.failures > 0 }
	return slices.ContainsFunc(slices.Collect(maps.Values(r.nodeBackoffs)), failing) ||
		slices.ContainsFunc(slices.Collect(maps.Values(r.podBackoffs)), failing)
}
