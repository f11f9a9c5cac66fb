package engine

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

// pass plans a Service and carries the plan out. Whatever breaks, breaks for this
// Service alone.
func (e *Engine) pass(h *holding, key Key, taken job) (how outcome) {
	how.last = LastPlan{Time: time.Now(), Trigger: taken.trigger}
	defer func() {
		if cause := recover(); cause != nil {
			how.err, how.placement = fmt.Errorf("panic: %v", cause), nil
			e.logger.Error("panic while working on a service", "service", key.String(), "cause", cause, "stack", string(debug.Stack()))
		}
	}()
	if err := e.readUp(h, key, taken.unread); err != nil {
		how.err = fmt.Errorf("%w: %w", ErrUnread, err)
		return how
	}
	plan, known := e.plan(key, taken)
	how.plan = plan
	if taken.resting && len(taken.waiting) == 0 {
		how.withheld = withhold(&how.plan)
	}
	e.carryOut(h, key, &how, known)
	if taken.changed.IsZero() || how.last.writes() == 0 {
		how.last.Latency = 0
	} else {
		how.last.Latency = max(time.Since(taken.changed), 0)
	}
	if how.err != nil || how.withheld || how.terminating {
		return how
	}
	if how.placement = known; known == nil {
		how.placement = e.settle(key, taken.service)
	}
	how.quiet = e.cfg.CompactAfter
	how.slack = how.quiet > 0 && how.placement != nil && how.placement.Slack(e.cfg.Limit)
	return how
}

// plan plans what changed, or all of the Service. known is the placement that the
// plan was made from; nil when it was made from everything.
func (e *Engine) plan(key Key, taken job) (plan pack.Plan, known *pack.Placement) {
	if taken.part() && !taken.compacting {
		snapshot, ok := e.cache.snapshotOfPods(key, taken.pods)
		if ok && snapshot.Service == taken.service { // else the Service changed since, and is planned as a whole
			in := e.input(snapshot, desired.ResolveEach(snapshot.Service, snapshot.Candidates()))
			in.ChangeTime = taken.changed
			return taken.placement.Plan(in, taken.pods), taken.placement
		}
	}
	snapshot, ok := e.cache.snapshot(key)
	if !ok {
		return pack.Plan{}, nil
	}
	if index.Management(snapshot.Service) != index.Managed {
		return e.cleanUp(snapshot), nil
	}
	in := e.input(snapshot, desired.ResolveEach(snapshot.Service, snapshot.Candidates()))
	if taken.compacting {
		return pack.Compact(in, taken.budget), nil
	}
	in.ChangeTime = taken.changed
	if in.ChangeTime.IsZero() && taken.creation && len(snapshot.Slices) == 0 {
		// A Service without slices that is met for the first time is new. One that
		// has slices changed at a time nobody saw.
		in.ChangeTime = snapshot.Service.CreationTimestamp.Time
	}
	return pack.Make(in), nil
}

// settle takes down where the endpoints lie after a pass over everything; nil when
// parts of the Service cannot be planned on their own.
func (e *Engine) settle(key Key, as *corev1.Service) *pack.Placement {
	snapshot, ok := e.cache.snapshot(key)
	service := snapshot.Service
	if !ok || service != as || service.DeletionTimestamp != nil ||
		index.Management(service) != index.Managed || hints.ModeOf(service) == hints.Auto {
		return nil
	}
	settled, ok := pack.NewPlacement(snapshot)
	if !ok {
		return nil
	}
	return settled
}

// withhold takes out of a plan what somebody else would only undo again, and
// reports whether there was any. What brings endpoints that are missing stays.
func withhold(plan *pack.Plan) bool {
	all := len(plan.Changes)
	plan.Changes = slices.DeleteFunc(slices.Clone(plan.Changes), func(change pack.Change) bool {
		return change.Verb != pack.Create && change.Added == 0
	})
	return len(plan.Changes) < all
}
