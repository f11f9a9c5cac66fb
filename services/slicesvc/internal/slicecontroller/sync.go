package slicecontroller

import (
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// sync plans a Service and applies the plan. A panic fails the sync of this Service only.
func (c *Controller) sync(owned *ownedShard, key Key, input *syncInput) (result syncResult) {
	result.lastPlan = LastPlan{Time: time.Now(), Trigger: input.trigger}
	defer func() {
		if cause := recover(); cause != nil {
			result.err, result.placement, result.replan = fmt.Errorf("panic: %v", cause), nil, false
			c.logger.Error("panic in the sync of a service", "service", key.String(), "cause", cause, "stack", string(debug.Stack()))
		}
	}()
	if err := c.readPending(owned, key, input.unread); err != nil {
		result.err = fmt.Errorf("%w: %w", ErrSlicesUnread, err)
		return result
	}
	placement := c.plan(key, input, &result)
	if input.rejectStale(result.plan) {
		result.rejected, result.placement = true, input.placement
		return result
	}
	if len(input.waiters) == 0 {
		result.paused = input.removePausedChanges(&result.plan)
	}
	c.applyPlan(owned, key, &result, placement, input.compacting)
	if !input.changeTime.IsZero() && result.lastPlan.writes() > 0 {
		result.lastPlan.Latency = max(time.Since(input.changeTime), 0)
	}
	if !result.complete() {
		return result
	}
	if result.placement = placement; placement == nil {
		result.placement = c.buildPlacement(key, input.service)
	}
	result.quietPeriod = c.cfg.CompactAfter
	result.compactable = result.quietPeriod > 0 && c.compactable(key, input.service, result.placement)
	return result
}

// compactable returns whether fewer slices may be enough for a Service. placement is nil for a
// Service in mode Auto, among others.
func (c *Controller) compactable(key Key, synced *corev1.Service, placement *pack.Placement) bool {
	if placement != nil {
		return placement.Slack(c.cfg.MaxEndpointsPerSlice)
	}
	service, slices, ok := c.index.Slices(key)
	return ok && service == synced && index.Managed(service) && service.DeletionTimestamp == nil &&
		len(slices) > pack.MinSlices(slices, len(desired.Families(service)), c.cfg.MaxEndpointsPerSlice)
}

// plan plans the changed Pods, or the whole Service. It sets the plan of the result, and returns
// the placement that the plan was made from; nil for a plan of the whole Service.
func (c *Controller) plan(key Key, input *syncInput, result *syncResult) *pack.Placement {
	if input.podsOnly() && !input.compacting {
		snapshot, ok := c.index.SnapshotOfPods(key, input.pods)
		if ok && snapshot.Service == input.service { // else the Service has changed and is planned as a whole
			in := c.planInput(snapshot)
			in.ChangeTime = input.changeTime
			result.plan = input.placement.Plan(in, input.pods)
			return input.placement
		}
	}
	snapshot, ok := c.index.Snapshot(key)
	switch {
	case !ok:
		return nil
	case !index.Managed(snapshot.Service):
		result.plan = c.planUnmanaged(snapshot)
		return nil
	}
	in := c.planInput(snapshot)
	result.missingNodes = in.Endpoints.MissingNodes
	if input.compacting {
		result.plan = pack.Compact(in, input.compactionWrites)
		return nil
	}
	in.ChangeTime = input.changeTime
	if in.ChangeTime.IsZero() && input.firstSync && len(snapshot.Slices) == 0 {
		// A Service without slices in its first sync is new. If it has slices, the time of its
		// change is unknown.
		in.ChangeTime = snapshot.Service.CreationTimestamp.Time
	}
	result.plan = pack.Make(in)
	return nil
}

// buildPlacement returns the placement of the endpoints after a sync of the whole Service, or nil
// if changed Pods of the Service cannot be planned alone.
func (c *Controller) buildPlacement(key Key, synced *corev1.Service) *pack.Placement {
	snapshot, ok := c.index.Snapshot(key)
	service := snapshot.Service
	if !ok || service != synced || service.DeletionTimestamp != nil ||
		!index.Managed(service) || hints.ModeOf(service) == hints.Auto {
		return nil
	}
	placement, _ := pack.NewPlacement(snapshot) // nil if it fails
	return placement
}

// removePausedChanges removes from a plan the changes that wait because another writer keeps
// reverting them, and returns whether there were any. A change that affects traffic never waits.
func (i *syncInput) removePausedChanges(plan *pack.Plan) bool {
	if !i.contended && !i.relabelled {
		return false
	}
	all := len(plan.Changes)
	plan.Changes = slices.DeleteFunc(slices.Clone(plan.Changes), func(change pack.Change) bool {
		return (i.contended || change.Reason == pack.LabelsChanged) && !change.AffectsTraffic()
	})
	return len(plan.Changes) < all
}

func (c *Controller) planInput(snapshot index.Snapshot) pack.Input {
	return pack.Input{
		Snapshot:  snapshot,
		Endpoints: desired.ResolveEach(snapshot.Service, snapshot.Candidates()),
		Limit:     c.cfg.MaxEndpointsPerSlice,
		ManagedBy: c.cfg.ManagedBy,
	}
}

// planUnmanaged plans the deletion of the slices of a Service that is no longer managed, if it is
// configured.
func (c *Controller) planUnmanaged(snapshot index.Snapshot) pack.Plan {
	if !c.cfg.DeleteUnmanagedSlices {
		return pack.Plan{}
	}
	return pack.Clear(c.planInput(snapshot))
}
