package slicecontroller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// ServiceState is what is known of one Service. Its objects are shared and must not be changed.
type ServiceState struct {
	Service   *corev1.Service
	Unmanaged index.Unmanaged
	// Slices are the slices of the Service, unordered, as they were written last.
	Slices []*discoveryv1.EndpointSlice
	// WriteTimes has the time of this replica's last write in this term, by the name of the slice.
	WriteTimes map[string]time.Time
	History    SyncHistory
	// LastPlan is the last sync of this term; its Time is zero if there was none.
	LastPlan LastPlan
	// ContendedBy names another writer that keeps reverting slices; empty if there is none.
	ContendedBy string
	// Topology is the Service's own value of its trafficDistribution or topology annotation.
	Topology string
	// TopologyProblem says why a Service with the topology annotation has no hints, in the first
	// family without hints. To find it costs a plan of the Service.
	TopologyProblem string
}

// Trigger is what a sync was for.
type Trigger string

const (
	// ByTerm means that a term of the Service's shard began here.
	ByTerm Trigger = "TERM"
	// ByService means that the Service changed.
	ByService Trigger = "SERVICE"
	// ByPod means that a Pod changed that the Service selects or selected.
	ByPod Trigger = "POD"
	// ByNode means that a Node changed that a Pod is bound to, or that hints depend on.
	ByNode Trigger = "NODE"
	// BySlice means that another writer changed or deleted a slice of the Service.
	BySlice Trigger = "SLICE"
	// ByConflict means that a slice changed while it was being written.
	ByConflict Trigger = "CONFLICT"
	// ByRetry means that the last sync failed.
	ByRetry Trigger = "RETRY"
	// ByRequest means that a client asked for a sync.
	ByRequest Trigger = "REQUEST"
	// ByCompaction means that the Service was quiet and fewer slices may be enough.
	ByCompaction Trigger = "COMPACTION"
)

// LastPlan is what a sync did.
type LastPlan struct {
	// Time is the beginning of the sync.
	Time time.Time
	// Trigger is the first cause of the sync.
	Trigger Trigger
	// Latency is the time from the change to the answer of the last write. It is 0 if the time of
	// the change is unknown or nothing was written.
	Latency time.Duration
	// Creates, Updates and Deletes count the stored changes.
	Creates, Updates, Deletes int
}

func (p LastPlan) writes() int { return p.Creates + p.Updates + p.Deletes }

// State returns false if there is no such Service.
func (c *Controller) State(key Key) (ServiceState, bool) {
	service, slices, ok := c.cache.slices(key)
	if !ok {
		return ServiceState{}, false
	}
	state := ServiceState{
		Service:   service,
		Unmanaged: index.Management(service),
		Slices:    slices,
		Topology:  hints.Text(service),
	}
	c.shards.describe(key, &state, time.Now())
	if hints.ModeOf(service) == hints.Auto {
		state.TopologyProblem = c.topologyProblem(key)
	}
	return state, true
}

func (c *Controller) topologyProblem(key Key) string {
	preview, _ := c.Preview(key)
	for _, family := range preview.Plan.Topology {
		if family.Problem != "" {
			return family.Problem
		}
	}
	return ""
}

// KeysAfter returns the first limit Services after a key, in order, of one namespace or of all for
// "". The zero Key is before all Services.
func (c *Controller) KeysAfter(namespace string, after Key, limit int) []Key {
	return c.cache.keysAfter(namespace, after, limit)
}

// Preview is what the next sync of a Service would write.
type Preview struct {
	Plan pack.Plan
	// MissingNodes delay endpoints until they exist.
	MissingNodes []string
	// CatchingUp says that the cache may lack writes of the last holder of the shard. A sync waits
	// for them.
	CatchingUp bool
}

// Preview plans the whole Service, without compaction. It returns false if there is no such
// Service. The plan of a Service that is not managed is empty.
func (c *Controller) Preview(key Key) (Preview, bool) {
	snapshot, ok := c.cache.snapshot(key)
	if !ok {
		return Preview{}, false
	}
	if index.Management(snapshot.Service) != index.Managed {
		return Preview{Plan: c.planUnmanaged(snapshot)}, true
	}
	endpoints := desired.ResolveEach(snapshot.Service, snapshot.Candidates())
	return Preview{
		Plan:         pack.Make(c.planInput(snapshot, endpoints)),
		MissingNodes: endpoints.MissingNodes,
		CatchingUp:   c.shards.catchingUp(key),
	}, true
}

// EndpointFacts is what is known of one Pod in one Service.
type EndpointFacts struct {
	Service *corev1.Service
	// Candidate has the Pod and its Node.
	Candidate desired.Candidate
	// Slices are the slices of the Service, unordered.
	Slices []*discoveryv1.EndpointSlice
	// Pending says that a sync of the Service is due, running or failing here. It is false if the
	// Service's shard is not held here.
	Pending bool
}

// Endpoint returns what is known of a Pod in the Service's namespace. It fails with
// ErrServiceNotFound or ErrPodNotFound.
func (c *Controller) Endpoint(service Key, pod string) (EndpointFacts, error) {
	facts, err := c.cache.endpoint(service, pod)
	if err != nil {
		return EndpointFacts{}, err
	}
	facts.Pending = c.shards.pending(service)
	return facts, nil
}

// ReconcileResult is what a requested sync did.
type ReconcileResult struct {
	Plan pack.Plan
	// Applied says that all of the plan was stored.
	Applied bool
}

// Reconcile syncs a whole Service before all waiting Services, even if its updates are suspended.
// It blocks until the sync has ended, ctx ends, or the shard is lost. It fails with
// ErrServiceNotFound, ErrUnmanaged, ErrShardNotHeld or the error of the sync, which is retried
// anyway.
func (c *Controller) Reconcile(ctx context.Context, key Key) (ReconcileResult, error) {
	service, ok := c.cache.service(key)
	switch {
	case !ok:
		return ReconcileResult{}, ErrServiceNotFound
	case !c.handles(service):
		return ReconcileResult{}, ErrUnmanaged
	}
	owned := c.shards.ownerOf(key)
	if owned == nil {
		return ReconcileResult{}, ErrShardNotHeld
	}
	done := make(chan syncResult, 1) // notify must not block
	owned.addWaiter(key, done, time.Now())
	c.shards.enqueue(key, requestedPriority, 0)
	select {
	case <-ctx.Done():
		return ReconcileResult{}, ctx.Err()
	case <-owned.ctx.Done():
		return ReconcileResult{}, ErrShardNotHeld
	case result := <-done:
		return ReconcileResult{Plan: result.plan, Applied: result.err == nil}, result.err
	}
}

// Revision returns the revision of the latest change. A reader calls it, lists the Services, and
// then calls Changes.
func (c *Controller) Revision() uint64 { return c.changes.latest() }

// Changes returns the Services that changed since a revision. It does not block. A Service that
// changed several times is returned once.
func (c *Controller) Changes(since uint64) Changes { return c.changes.since(since) }

// serviceSizes are sums over managed Services. Families and ports count separately: an endpoint of
// a dual-stack Service counts twice.
type serviceSizes struct {
	endpoints, slices int
	// minSlices is the smallest number of slices that holds the endpoints.
	minSlices int
	// topologies counts Services with hints, by ServiceState.Topology.
	topologies map[string]int
}

// sizes adds up the cached slices of the held shards. It locks the cache only for one Service at a
// time.
func (c *Controller) sizes() serviceSizes {
	sizes := serviceSizes{topologies: map[string]int{}}
	for _, owned := range c.shards.held() {
		for _, key := range c.cache.shardKeys(owned.shard) {
			service, slices, ok := c.cache.slices(key)
			if !ok || index.Management(service) != index.Managed {
				continue
			}
			sizes.slices += len(slices)
			sizes.minSlices += pack.MinSlices(slices, len(service.Spec.IPFamilies), c.cfg.MaxEndpointsPerSlice)
			for _, slice := range slices {
				sizes.endpoints += len(slice.Endpoints)
			}
			if topology := hints.Text(service); topology != "" {
				sizes.topologies[topology]++
			}
		}
	}
	return sizes
}
