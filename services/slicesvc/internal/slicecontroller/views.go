package slicecontroller

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// State returns false if there is no such Service.
func (c *Controller) State(key Key) (ServiceState, bool) {
	service, slices, ok := c.index.Slices(key)
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
	return c.index.KeysAfter(namespace, after, limit)
}

// Preview plans the whole Service, without compaction. It returns false if there is no such
// Service. The plan of a Service that is not managed is empty.
func (c *Controller) Preview(key Key) (Preview, bool) {
	snapshot, ok := c.index.Snapshot(key)
	if !ok {
		return Preview{}, false
	}
	if index.Management(snapshot.Service) != index.Managed {
		return Preview{Plan: c.planUnmanaged(snapshot)}, true
	}
	endpoints := desired.ResolveEach(snapshot.Service, snapshot.Candidates())
	owned := c.shards.ownerOf(key)
	return Preview{
		Plan:         pack.Make(c.planInput(snapshot, endpoints)),
		MissingNodes: endpoints.MissingNodes,
		CatchingUp:   owned != nil && owned.catchingUp(),
	}, true
}

// Endpoint returns what is known of a Pod in the Service's namespace. It fails with
// ErrServiceNotFound or ErrPodNotFound.
func (c *Controller) Endpoint(service Key, pod string) (EndpointFacts, error) {
	object, slices, ok := c.index.Slices(service)
	if !ok {
		return EndpointFacts{}, ErrServiceNotFound
	}
	candidate, ok := c.index.Candidate(keyOf(service.Namespace, pod))
	if !ok {
		return EndpointFacts{}, ErrPodNotFound
	}
	owned := c.shards.ownerOf(service)
	return EndpointFacts{
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
