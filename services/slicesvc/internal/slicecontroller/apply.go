package slicecontroller

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// concurrentWrites is how many slices of one Service are written at the same time. One after the
// other, a Service with many slices would take long, and later changes would wait.
const concurrentWrites = 4

// maxThrottleDelay bounds the pause that kube-apiserver asks a worker for: its value may be wrong.
const maxThrottleDelay = 10 * time.Second

// planApplier applies the plan of one sync.
type planApplier struct {
	*Syncer
	// ctx is that of the term, with the span of the sync.
	ctx   context.Context
	owned *ownedShard
	key   Key

	mu     sync.Mutex  // guards all below; never held across I/O
	result *syncResult // collects what was written
	// interruptible says that the plan may be left undone when the Service changes.
	interruptible bool
	// placement is what the plan was made from; nil for a plan of the whole Service.
	placement *pack.Placement
	// moves says that some changes of the plan remove endpoints which others add.
	moves bool
	errs  []error
}

// applyPlan makes the writes of a plan. Writes that remove endpoints which another write adds come
// last, one after the other; after a failed write the source says which of them wait. Otherwise a
// failed write does not stop the others, except that all stop if kube-apiserver throttles or the
// term ends. No further write of an interruptible plan begins after the Service has changed.
func (c *Syncer) applyPlan(ctx context.Context, owned *ownedShard, key Key, result *syncResult, placement *pack.Placement, interruptible bool) {
	result.replan = true // until an error that a new plan does not solve
	a := &planApplier{Syncer: c, ctx: ctx, owned: owned, key: key, result: result, interruptible: interruptible, placement: placement}
	result.outcomes = make([]Outcome, len(result.plan.Changes))
	var independent, dependent []int // places in the plan
	for i := range result.plan.Changes {
		if result.plan.Changes[i].Supersedes() {
			dependent = append(dependent, i)
		} else {
			independent = append(independent, i)
		}
	}
	a.moves = len(dependent) > 0
	a.applyConcurrently(independent)
	for _, i := range dependent {
		if a.stopped() {
			break
		}
		if incomplete := len(a.errs) > 0 || result.terminating || len(result.postponed) > 0; incomplete &&
			a.source.waitsFor(result.plan.Changes[i], a.failed()) {
			continue
		}
		a.apply(i)
	}
	result.err = errors.Join(a.errs...)
	if owned.ctx.Err() != nil && len(result.plan.Changes) > 0 {
		result.err = owned.ctx.Err()
	}
}

func (a *planApplier) applyConcurrently(changes []int) {
	if len(changes) == 1 {
		a.apply(changes[0])
		return
	}
	var writers sync.WaitGroup
	next := make(chan int)
	for range min(len(changes), concurrentWrites) {
		writers.Go(func() {
			for i := range next {
				if !a.stopped() {
					a.applyRecovering(i)
				}
			}
		})
	}
	for _, i := range changes {
		next <- i
	}
	close(next)
	writers.Wait()
}

// applyRecovering turns a panic into an error, because sync recovers only on its own goroutine.
func (a *planApplier) applyRecovering(i int) {
	defer func() {
		if cause := recover(); cause != nil {
			a.logger.Error("panic in the write of a slice", "service", a.key.String(), "cause", cause, "stack", string(debug.Stack()))
			err := fmt.Errorf("panic: %v", cause)
			a.setOutcome(i, Failed, err)
			a.recordError(err, false)
		}
	}()
	a.apply(i)
}

// failed returns the changes whose writes have failed, or wait because they failed.
func (a *planApplier) failed() []pack.Change {
	a.mu.Lock()
	defer a.mu.Unlock()
	failed := slices.Clone(a.result.postponed)
	for i := range a.result.outcomes {
		if a.result.outcomes[i].State == Failed {
			failed = append(failed, a.result.plan.Changes[i])
		}
	}
	return failed
}

// stopped returns whether no further write may begin.
func (a *planApplier) stopped() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.interruptible && !a.result.interrupted {
		a.result.interrupted = a.owned.hasCause(a.key)
	}
	return a.result.throttled > 0 || a.result.interrupted || a.owned.ctx.Err() != nil
}

// apply makes the i-th change of the plan.
func (a *planApplier) apply(i int) {
	change := a.result.plan.Changes[i]
	stored, err := a.write(change)
	switch {
	case err != nil:
		a.setOutcome(i, Failed, err)
	case stored == nil:
		a.setOutcome(i, NotNeeded, nil)
		err = a.recordWrite(change, change.Slice)
	default:
		a.setOutcome(i, Applied, nil)
		err = a.recordWrite(change, stored)
	}
	switch {
	case err == nil:
	case a.owned.ctx.Err() != nil: // applyPlan returns it
	case errors.Is(err, kube.ErrNamespaceTerminating):
		a.logger.Debug("slice not created", "service", a.key.String(), "error", err)
		a.recordTerminating()
	case errors.Is(err, kube.ErrConflict):
		a.recordConflict(err, a.readConflicting(change))
	default:
		a.recordError(err, false)
	}
}

func (a *planApplier) setOutcome(i int, state OutcomeState, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.outcomes[i] = Outcome{State: state, Err: err, Time: time.Now()}
}

func (a *planApplier) recordWrite(change pack.Change, stored *discoveryv1.EndpointSlice) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch change.Verb {
	case pack.Create:
		a.result.lastPlan.Creates++
	case pack.Update:
		a.result.lastPlan.Updates++
	case pack.Delete:
		a.result.lastPlan.Deletes++
	}
	switch {
	case a.placement == nil:
	case change.Verb == pack.Delete:
		a.placement.Delete(change.Slice.Name)
	case !a.placement.Put(stored):
		return fmt.Errorf("%s endpointslice %s/%s: what was stored is not what was written", change.Verb, stored.Namespace, stored.Name)
	}
	if !a.moves || change.Verb == pack.Delete {
		return nil
	}
	if address, ok := missingAddress(change.Slice, stored); ok {
		return fmt.Errorf("%s endpointslice %s/%s: it was stored without %s, which was written; look for an admission webhook that changes EndpointSlices",
			change.Verb, stored.Namespace, stored.Name, address)
	}
	return nil
}

// missingAddress returns an address that is in the first slice and not in the second.
func missingAddress(written, stored *discoveryv1.EndpointSlice) (address string, ok bool) {
	if slices.EqualFunc(written.Endpoints, stored.Endpoints, func(a, b discoveryv1.Endpoint) bool { return slices.Equal(a.Addresses, b.Addresses) }) {
		return "", false
	}
	has := map[string]bool{}
	for _, endpoint := range stored.Endpoints {
		for _, address := range endpoint.Addresses {
			has[address] = true
		}
	}
	for _, endpoint := range written.Endpoints {
		for _, address := range endpoint.Addresses {
			if !has[address] {
				return address, true
			}
		}
	}
	return "", false
}

func (a *planApplier) recordTerminating() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.terminating = true
}

func (a *planApplier) recordConflict(err error, replan bool) {
	a.recordError(err, replan)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.conflict = true
}

// recordError records a failed write. replan says that a new plan may solve the error.
func (a *planApplier) recordError(err error, replan bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.errs = append(a.errs, err)
	a.result.replan = a.result.replan && replan
	a.result.throttled = max(a.result.throttled, throttleDelay(err))
}

// throttleDelay returns how long to pause after an error of kube-apiserver, 0 for not at all.
func throttleDelay(err error) time.Duration {
	requested, throttled := kube.RetryAfter(err)
	if !throttled {
		return 0
	}
	return min(max(requested, minRetryDelay), maxThrottleDelay)
}

// write makes one write and stores the result in the cache. It returns nil for a deletion of a
// slice that was gone.
func (a *planApplier) write(change pack.Change) (*discoveryv1.EndpointSlice, error) {
	name := change.Slice.Name
	start := time.Now()
	a.owned.beginWrite(a.key, name)
	returned := false
	defer func() {
		if !returned { // Write panicked
			a.owned.failWrite(a.key, name, true)
		}
	}()
	stored, err := a.tracedWrite(change)
	returned = true
	now := time.Now()
	if a.deps.Batcher != nil {
		a.deps.Batcher.Wrote(now, now.Sub(start), err)
	}
	if err != nil {
		a.owned.failWrite(a.key, name, !kube.Refused(err))
		return nil, err
	}
	a.metrics.writes.WithLabelValues(string(change.Verb)).Inc()
	if change.Verb == pack.Delete {
		a.index.PutTombstone(change.Slice)
		a.owned.finishWrite(a.key, change.Verb, change.Slice, now)
		return stored, nil
	}
	a.index.PutWrittenSlice(stored)
	if newer := a.owned.finishWrite(a.key, change.Verb, stored, now); newer.observed {
		a.cacheNewer(stored, newer)
	}
	return stored, nil
}

// cacheNewer caches what a watch showed of a slice after our write of it.
func (a *planApplier) cacheNewer(stored *discoveryv1.EndpointSlice, newer observedVersion) {
	if newer.deleted {
		a.index.DeleteSlice(stored)
		return
	}
	slice := keyOf(stored.Namespace, stored.Name)
	if _, cached, _, ok := a.index.SliceVersion(slice); ok && index.CompareVersions(newer.version, cached) <= 0 || a.deps.Reader == nil {
		return
	}
	if err := a.readSlice(a.owned.ctx, slice, nil); err != nil {
		a.logger.Debug("cannot read slice, will retry before the next plan", "slice", slice.String(), "error", err)
		a.owned.addUnread(a.key, stored.Name)
	}
}

// readConflicting caches the current state of a slice in conflict, and returns whether it could.
func (a *planApplier) readConflicting(change pack.Change) bool {
	if a.deps.Reader == nil {
		return false
	}
	return a.readSlice(a.owned.ctx, keyOf(change.Slice.Namespace, change.Slice.Name), change.Slice) == nil
}
