package engine

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/apply"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/placement"
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
func (e *Engine) plan(key Key, taken job) (plan pack.Plan, known *placement.Placement) {
	if taken.part() && !taken.compacting {
		in := e.blank(taken.service)
		in.Endpoints = desired.Resolve(taken.service, e.cache.candidates(key, taken.pods))
		in.ChangeTime = taken.changed
		return taken.placement.Plan(in, taken.pods), taken.placement
	}
	observed, ok := e.cache.observed(key)
	if !ok {
		return pack.Plan{}, nil
	}
	if index.Management(observed.Service) != index.Managed {
		return e.cleanUp(observed), nil
	}
	in := e.input(observed, desired.ResolveEach(observed.Service, observed.Candidates()))
	if taken.compacting {
		return pack.Compact(in, taken.budget), nil
	}
	in.ChangeTime = taken.changed
	if in.ChangeTime.IsZero() && taken.creation && len(observed.Slices) == 0 {
		// A Service without slices that is met for the first time is new. One that
		// has slices changed at a time nobody saw.
		in.ChangeTime = observed.Service.CreationTimestamp.Time
	}
	return pack.Make(in), nil
}

// settle takes down where the endpoints lie after a pass over everything; nil when
// parts of the Service cannot be planned on their own.
func (e *Engine) settle(key Key, as *corev1.Service) *placement.Placement {
	service, slices, ok := e.cache.slices(key)
	if !ok || service != as || service.DeletionTimestamp != nil ||
		index.Management(service) != index.Managed || hints.ModeOf(service) == hints.Auto {
		return nil
	}
	settled, ok := placement.Of(slices)
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

// carryOut makes the writes of a plan, one after the other. A write that fails
// stops no other, except that slices stay whose endpoints were to be found in
// the slice that could not be written, and that a kube-apiserver which asks to be
// left alone is.
func (e *Engine) carryOut(h *holding, key Key, how *outcome, known *placement.Placement) {
	var failures []error
	how.reread = true // until something fails that reading does not help with
	for _, change := range how.plan.Changes {
		if len(failures) > 0 && change.Supersedes() {
			continue
		}
		err := e.write(h, key, change, how, known)
		switch {
		case h.ctx.Err() != nil:
			how.err = h.ctx.Err()
			return
		case errors.Is(err, apply.ErrNamespaceTerminating):
			e.logger.Debug("slice not created", "service", key.String(), "error", err)
			how.terminating = true
		case errors.Is(err, apply.ErrConflict):
			how.conflict = true
			how.reread = e.reread(h, change) && how.reread
			failures = append(failures, err)
		case err != nil:
			how.reread = false
			failures = append(failures, err)
		}
		if how.rest = restAfter(err); how.rest > 0 {
			break
		}
	}
	how.err = errors.Join(failures...)
}

// restAfter is how long the kube-apiserver asks to be left alone after a write, 0
// if it does not. More than longestRest is not granted: who asks for it may be wrong.
func restAfter(err error) time.Duration {
	pause, asked := apply.RetryAfter(err)
	if !asked {
		return 0
	}
	return min(max(pause, firstRetry), longestRest)
}

// write makes one write and takes down what it left.
func (e *Engine) write(h *holding, key Key, change pack.Change, how *outcome, known *placement.Placement) error {
	name := change.Slice.Name
	start := time.Now()
	h.writes(key, name)
	stored, err := e.deps.Writer.Write(h.ctx, change)
	now := time.Now()
	if e.deps.Pace != nil {
		e.deps.Pace.Wrote(now, now.Sub(start), err)
	}
	if err != nil {
		h.failed(key, name, !apply.Refused(err))
		return err
	}
	e.metrics.change(change.Verb)
	how.written = append(how.written, change)
	if change.Verb == pack.Delete {
		e.cache.bury(change.Slice)
	} else {
		e.cache.keep(stored)
	}
	e.overtaken(h, key, stored, h.wrote(key, change.Verb, stored, now))
	switch change.Verb {
	case pack.Create:
		how.last.Creates++
	case pack.Update:
		how.last.Updates++
	case pack.Delete:
		how.last.Deletes++
	}
	if known == nil {
		return nil
	}
	if change.Verb == pack.Delete {
		known.Deleted(name)
		return nil
	}
	if !known.Wrote(stored) {
		return fmt.Errorf("%s endpointslice %s/%s: what was stored is not what was written", change.Verb, stored.Namespace, name)
	}
	return nil
}
