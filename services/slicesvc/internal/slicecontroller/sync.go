package slicecontroller

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// sync plans a Service and applies the plan. ctx is that of the term, with a span. A panic fails
// the sync of this Service only.
func (c *Syncer) sync(ctx context.Context, owned *ownedShard, key Key, input *syncInput) (result syncResult) {
	result.lastPlan = LastPlan{Time: time.Now(), Trigger: input.trigger}
	defer func() {
		if cause := recover(); cause != nil {
			result.err, result.placement = fmt.Errorf("panic: %v", cause), nil
			c.logger.Error("panic in the sync of a service", "service", key.String(), "cause", cause, "stack", string(debug.Stack()))
		}
	}()
	if err := c.readPending(owned, key, input.unread); err != nil {
		result.err = fmt.Errorf("%w: %w", ErrSlicesUnread, err)
		return result
	}
	placement, err := c.tracedPlan(ctx, key, input, &result)
	if err != nil {
		result.err = err
		return result
	}
	requested := len(input.waiters) > 0
	if requested {
		result.fingerprint = c.source.fingerprint(input.object, result.plan)
	}
	if input.rejectStale(result.fingerprint) {
		result.rejected, result.placement = true, input.placement
		return result
	}
	if len(input.waiters) == 0 {
		result.paused = input.removePausedChanges(&result.plan)
	}
	if !requested {
		input.postponeFailed(&result, time.Now())
	}
	c.applyPlan(ctx, owned, key, input, &result, placement)
	result.takers = c.hasTakers(key, input, &result)
	if !input.changeTime.IsZero() && result.lastPlan.writes() > 0 {
		result.lastPlan.Latency = max(time.Since(input.changeTime), 0)
	}
	if !result.complete() {
		return result
	}
	c.source.prepareNext(key, input, &result, placement)
	return result
}

// hasTakers returns whether slices that took endpoints must be written once more. Only a write, or
// a change of another writer, after which the whole Service is planned, can bring one.
func (c *Syncer) hasTakers(key Key, input *syncInput, result *syncResult) bool {
	return (input.takers || result.takes() || !input.podsOnly()) && slices.ContainsFunc(c.index.SlicesOf(key), pack.TookEndpointsLately)
}

// removePausedChanges removes from a plan the changes that wait because another writer keeps
// reverting them, and returns whether there were any. A change that affects traffic never waits.
func (i *syncInput) removePausedChanges(plan *pack.Plan) bool {
	if !i.contended && !i.relabelled {
		return false
	}
	all := len(plan.Changes)
	plan.Changes = slices.DeleteFunc(slices.Clone(plan.Changes), func(change pack.Change) bool {
		return (i.contended || change.Reason == pack.LabelsChanged || change.Reason == pack.AnnotationsChanged) && !change.AffectsTraffic()
	})
	return len(plan.Changes) < all
}
