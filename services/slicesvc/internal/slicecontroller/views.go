package slicecontroller

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

var (
	// ErrServiceNotFound is returned for a Service that does not exist.
	ErrServiceNotFound = errors.New("no such service")
	// ErrPodNotFound is returned for a Pod that does not exist.
	ErrPodNotFound = errors.New("no such pod")
	// ErrUnmanaged is returned for a Service whose slices are not written here.
	ErrUnmanaged = errors.New("service is not managed")
	// ErrSlicesUnread is wrapped by a sync that planned nothing, because the current state of a
	// slice could not be read.
	ErrSlicesUnread = errors.New("slices of the service cannot be read")
	// ErrShardNotHeld is returned if this replica does not hold, or no longer holds, the shard.
	ErrShardNotHeld = errors.New("shard is not held here")
)

// SyncHistory is how the syncs of a Service went on this replica.
type SyncHistory struct {
	// LastSync is the time of the last successful sync; zero if there is none.
	LastSync time.Time
	// LastError is the error of the last sync. It is empty if that succeeded, or if the Service's
	// shard is not held here.
	LastError string
	// Failures is the number of failures since the last success.
	Failures int
}

// ServiceState is what is known of one Service. Its objects are shared and must not be changed.
type ServiceState struct {
	Service   *corev1.Service
	Unmanaged index.UnmanagedReason
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

// Preview is what the next sync of a Service would write.
type Preview struct {
	Plan pack.Plan
	// MissingNodes delay endpoints until they exist.
	MissingNodes []string
	// CatchingUp says that the cache may lack writes of the last holder of the shard. A sync waits
	// for them.
	CatchingUp bool
}

// ReconcileResult is what a requested sync did.
type ReconcileResult struct {
	Plan pack.Plan
	// Applied says that all of the plan was stored.
	Applied bool
}

// State returns false if there is no such Service.
func (c *Controller) State(key Key) (ServiceState, bool) {
	service, slices, ok := c.index.Slices(key)
	if !ok {
		return ServiceState{}, false
	}
	state := ServiceState{
		Service:   service,
		Unmanaged: index.UnmanagedReasonOf(service),
		Slices:    slices,
		Topology:  hints.ModeName(service),
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
	return c.index.KeysAfter(namespace, after, limit)
}

// Preview plans the whole Service, without compaction. It returns false if there is no such
// Service. The plan of a Service that is not managed is empty.
func (c *Controller) Preview(key Key) (Preview, bool) {
	snapshot, ok := c.index.Snapshot(key)
	if !ok {
		return Preview{}, false
	}
	if !index.Managed(snapshot.Service) {
		return Preview{Plan: c.planUnmanaged(snapshot)}, true
	}
	in, owned := c.planInput(snapshot), c.shards.ownerOf(key)
	return Preview{
		Plan:         pack.Make(in),
		MissingNodes: in.Endpoints.MissingNodes,
		CatchingUp:   owned != nil && owned.catchingUp(),
	}, true
}

// Endpoint returns what is known of a Pod in the Service's namespace, without Held and
// TopologyProblem. It fails with ErrServiceNotFound or ErrPodNotFound.
func (c *Controller) Endpoint(service Key, pod string) (explain.Facts, error) {
	object, slices, ok := c.index.Slices(service)
	if !ok {
		return explain.Facts{}, ErrServiceNotFound
	}
	candidate, ok := c.index.Candidate(keyOf(service.Namespace, pod))
	if !ok {
		return explain.Facts{}, ErrPodNotFound
	}
	owned := c.shards.ownerOf(service)
	return explain.Facts{
		Now:       time.Now(),
		Service:   object,
		Candidate: candidate,
		Slices:    slices,
		Pending:   owned != nil && owned.pending(service),
	}, nil
}

// Reconcile syncs a whole Service before all waiting Services, even if its updates are suspended.
// It blocks until the sync has ended, ctx ends, or the shard is lost. It fails with
// ErrServiceNotFound, ErrUnmanaged, ErrShardNotHeld or the error of the sync, which is retried
// anyway.
func (c *Controller) Reconcile(ctx context.Context, key Key) (ReconcileResult, error) {
	service, ok := c.index.Service(key)
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
	c.shards.enqueue(key, requested, 0)
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
