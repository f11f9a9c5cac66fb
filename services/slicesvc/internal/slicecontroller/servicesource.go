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

var _ source = &Controller{}

// object returns a Service whose slices may have to be written.
func (c *Controller) object(key Key) (Object, error) {
	service, ok := c.index.Service(key)
	switch {
	case !ok:
		return nil, ErrServiceNotFound
	case !c.handles(service):
		return nil, ErrUnmanaged
	default:
		return service, nil
	}
}

func (c *Controller) shardKeys(shard int) []Key { return c.index.ShardKeys(shard) }

func (c *Controller) managed(shards []int) int { return c.Counts(shards).Managed }

// plan plans the changed Pods, or the whole Service. It sets the plan of the result, and returns
// the placement that the plan was made from; nil for a plan of the whole Service.
func (c *Controller) plan(_ context.Context, key Key, input *syncInput, result *syncResult) (*pack.Placement, error) {
	if input.podsOnly() && !input.compacting && !input.repeating {
		snapshot, ok := c.index.SnapshotOfPods(key, input.pods)
		if ok && Object(snapshot.Service) == input.object { // else the Service has changed and is planned as a whole
			in := c.planInput(snapshot)
			in.ChangeTime = input.changeTime
			result.plan = input.placement.Plan(in, input.pods)
			return input.placement, nil
		}
	}
	snapshot, ok := c.index.Snapshot(key)
	switch {
	case !ok:
		return nil, nil
	case !index.Managed(snapshot.Service):
		result.plan = c.planUnmanaged(snapshot)
		return nil, nil
	}
	in := c.planInput(snapshot)
	result.missingNodes = in.Endpoints.MissingNodes
	if input.compacting {
		result.plan = pack.Repeat(in, input.compactionWrites)
		if result.plan.Empty() && c.cfg.CompactAfter > 0 {
			result.plan = pack.Compact(in, input.compactionWrites)
		}
		return nil, nil
	}
	in.ChangeTime = input.changeTime
	if in.ChangeTime.IsZero() && input.firstSync && len(snapshot.Slices) == 0 {
		// A Service without slices in its first sync is new. If it has slices, the time of its
		// change is unknown.
		in.ChangeTime = snapshot.Service.CreationTimestamp.Time
	}
	result.plan = pack.Make(in)
	if input.repeating {
		result.plan = result.plan.With(pack.Repeat(in, compactionWrites))
	}
	return nil, nil
}

func (c *Controller) planInput(snapshot index.Snapshot) pack.Input {
	return pack.Input{
		Snapshot:  snapshot,
		Owner:     pack.ServiceOwner(snapshot.Service),
		Endpoints: desired.ResolveEach(snapshot.Service, snapshot.Candidates()),
		Limit:     c.cfg.MaxEndpointsPerSlice,
		ManagedBy: c.cfg.ManagedBy,

		WithoutRecycling: c.WithoutRecycling(keyOf(snapshot.Service.Namespace, snapshot.Service.Name)),
	}
}

// planUnmanaged plans the deletion of the slices of a Service that is no longer managed, if it is
// configured.
func (c *Controller) planUnmanaged(snapshot index.Snapshot) pack.Plan {
	if !c.cfg.DeleteUnmanagedSlices || c.cfg.MayDeleteUnmanaged != nil && !c.cfg.MayDeleteUnmanaged(keyOf(snapshot.Service.Namespace, snapshot.Service.Name)) {
		return pack.Plan{}
	}
	return pack.Clear(c.planInput(snapshot))
}

func (c *Controller) fingerprint(object Object, plan pack.Plan) string {
	service, _ := object.(*corev1.Service)
	return plan.Fingerprint(pack.ServiceOwner(service))
}

// prepareNext sets the placement for the next sync, and whether the Service is to be compacted.
func (c *Controller) prepareNext(key Key, input *syncInput, result *syncResult, placement *pack.Placement) {
	if result.placement = placement; placement == nil {
		result.placement = c.buildPlacement(key, input.object)
	}
	result.quietPeriod = c.cfg.CompactAfter
	result.compactable = result.quietPeriod > 0 && c.compactable(key, input.object, result.placement)
}

// buildPlacement returns the placement of the endpoints after a sync of the whole Service, or nil
// if changed Pods of the Service cannot be planned alone.
func (c *Controller) buildPlacement(key Key, synced Object) *pack.Placement {
	snapshot, ok := c.index.Snapshot(key)
	service := snapshot.Service
	if !ok || Object(service) != synced || service.DeletionTimestamp != nil ||
		!index.Managed(service) || hints.ModeOf(service) == hints.Auto {
		return nil
	}
	placement, _ := pack.NewPlacement(snapshot) // nil if it fails
	return placement
}

// compactable returns whether fewer slices may be enough for a Service. placement is nil for a
// Service in mode Auto, among others.
func (c *Controller) compactable(key Key, synced Object, placement *pack.Placement) bool {
	if placement != nil {
		return placement.Slack(c.cfg.MaxEndpointsPerSlice)
	}
	service, slices, ok := c.index.Slices(key)
	return ok && Object(service) == synced && index.Managed(service) && service.DeletionTimestamp == nil &&
		len(slices) > pack.MinSlices(slices, len(desired.Families(service)), c.cfg.MaxEndpointsPerSlice)
}

func (c *Controller) finished(_ Key, object Object, result *syncResult, _ time.Duration) {
	if service, ok := object.(*corev1.Service); ok {
		c.upstream.observeSync(service, result.plan.Changes, result.outcomes, result.err)
		c.events.syncFinished(service, result.plan.Topology, result.err)
	}
}

func (c *Controller) termBegan(int) {}

// annotationsEdited returns false: a slice of a Service has no annotation that is restored.
func (c *Controller) annotationsEdited(Key, *discoveryv1.EndpointSlice, *discoveryv1.EndpointSlice) bool {
	return false
}

// changed records a change of a Service.
func (c *Controller) changed(key Key) {
	if service, ok := c.index.Service(key); ok {
		c.changes.record(ServiceChange{Key: key, UID: service.UID})
	}
}

func (c *Controller) contended(object Object, writer string) {
	if service, ok := object.(*corev1.Service); ok {
		c.events.contended(service, writer)
	}
}
