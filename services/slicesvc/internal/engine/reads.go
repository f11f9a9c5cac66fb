package engine

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// State is what is known of one Service.
type State struct {
	Service   *corev1.Service
	Unmanaged index.Unmanaged
	// Slices are ours, in no particular order, with what we wrote last.
	Slices []*discoveryv1.EndpointSlice
	// Written is when this replica last wrote a slice in this term, by its name.
	Written map[string]time.Time
	// History is how passes over the Service went on this replica.
	History History
	// Last is the last pass of this term; its Time is zero if there was none.
	Last LastPlan
	// ContendedBy names another writer that keeps undoing our writes; empty for none.
	ContendedBy string
	// Topology is how the Service wants its traffic kept near, in its own words.
	Topology string
	// TopologyProblem says why a Service with the topology annotation has no hints,
	// in the first family that has none. To find it costs a plan of the Service.
	TopologyProblem string
}

// Trigger is what a pass is for.
type Trigger string

// The triggers.
const (
	// ByTerm: a term of the Service's shard began here.
	ByTerm Trigger = "TERM"
	// ByService: the Service changed.
	ByService Trigger = "SERVICE"
	// ByPod: a pod that it selects, or did, changed.
	ByPod Trigger = "POD"
	// ByNode: a node changed that a pod is bound to, or that hints depend on.
	ByNode Trigger = "NODE"
	// BySlice: somebody else wrote or deleted a slice of the Service.
	BySlice Trigger = "SLICE"
	// ByConflict: a slice changed while it was being written.
	ByConflict Trigger = "CONFLICT"
	// ByRetry: the last pass failed.
	ByRetry Trigger = "RETRY"
	// ByRequest: somebody asked for it.
	ByRequest Trigger = "REQUEST"
	// ByCompaction: the Service was quiet and its slices have room.
	ByCompaction Trigger = "COMPACTION"
)

// LastPlan is what a pass did.
type LastPlan struct {
	// Time is when it began.
	Time time.Time
	// Trigger is the oldest of its causes.
	Trigger Trigger
	// Latency is from the change that caused it to the answer of its last write; 0
	// when the change has no time or nothing was written.
	Latency time.Duration
	// Creates, Updates and Deletes count what was written.
	Creates, Updates, Deletes int
}

// writes is how many there were.
func (p LastPlan) writes() int { return p.Creates + p.Updates + p.Deletes }

// State returns what is known of a Service; false when there is no such Service.
// Its objects are shared and must not be changed.
func (e *Engine) State(key Key) (State, bool) {
	service, slices, ok := e.cache.slices(key)
	if !ok {
		return State{}, false
	}
	state := State{
		Service:   service,
		Unmanaged: index.Management(service),
		Slices:    slices,
		Topology:  hints.Text(service),
	}
	e.ledger.describe(key, &state, time.Now())
	if hints.ModeOf(service) == hints.Auto {
		state.TopologyProblem = e.topologyProblem(key)
	}
	return state, true
}

// topologyProblem says why a Service whose hints depend on all nodes has none. It
// is found by planning the Service, as a pass would.
func (e *Engine) topologyProblem(key Key) string {
	preview, _ := e.Preview(key)
	for _, family := range preview.Plan.Topology {
		if family.Problem != "" {
			return family.Problem
		}
	}
	return ""
}

// Preview is what the next pass over a Service would do.
type Preview struct {
	Plan pack.Plan
	// MissingNodes hold up endpoints until they appear.
	MissingNodes []string
	// Behind says that it is not known yet whether the cache shows what the last
	// holder of the Service's shard wrote, and a pass would wait for that.
	Behind bool
}

// Preview plans a Service as a whole without writing; false when there is no such
// Service. The plan is empty for a Service that is not managed.
func (e *Engine) Preview(key Key) (Preview, bool) {
	snapshot, ok := e.cache.snapshot(key)
	if !ok {
		return Preview{}, false
	}
	if index.Management(snapshot.Service) != index.Managed {
		return Preview{Plan: e.cleanUp(snapshot)}, true
	}
	endpoints := desired.ResolveEach(snapshot.Service, snapshot.Candidates())
	return Preview{
		Plan:         pack.Make(e.input(snapshot, endpoints)),
		MissingNodes: endpoints.MissingNodes,
		Behind:       e.ledger.behind(key),
	}, true
}

// Facts is what there is to know about one pod in one Service.
type Facts struct {
	Service   *corev1.Service
	Unmanaged index.Unmanaged
	// Selected says that the Service's selector matches the pod; false for a
	// Service that is not managed.
	Selected bool
	// Candidate has the pod, and what is known of its node.
	Candidate desired.Candidate
	// Node is the node it is bound to, if that is known.
	Node hints.Node
	// Slices are those of the Service, in no particular order.
	Slices []*discoveryv1.EndpointSlice
	// Limit is how many endpoints a slice may hold.
	Limit int
	// Pending says that a pass over the Service is due, under way or failing here.
	// It is always false on a replica that does not hold the Service's shard.
	Pending bool
}

// Endpoint returns what is known about a pod, of the Service's namespace, in a
// Service. It fails with ErrNoService or ErrNoPod.
func (e *Engine) Endpoint(service Key, pod string) (Facts, error) {
	facts, err := e.cache.facts(service, pod)
	if err != nil {
		return Facts{}, err
	}
	facts.Limit = e.cfg.Limit
	facts.Pending = e.ledger.pending(service)
	return facts, nil
}

// input is what a plan is made from.
func (e *Engine) input(snapshot index.Snapshot, endpoints desired.Endpoints) pack.Input {
	return pack.Input{
		Snapshot:  snapshot,
		Endpoints: endpoints,
		Limit:     e.cfg.Limit,
		ManagedBy: e.cfg.ManagedBy,
	}
}

// cleanUp plans to delete what a Service has left from the time when it was
// managed, if that is wanted.
func (e *Engine) cleanUp(snapshot index.Snapshot) pack.Plan {
	if !e.cfg.CleanUp {
		return pack.Plan{}
	}
	return pack.Clear(e.input(snapshot, desired.Endpoints{}))
}
