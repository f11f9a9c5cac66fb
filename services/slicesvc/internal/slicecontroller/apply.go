package slicecontroller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
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
	input *syncInput

	mu     sync.Mutex  // guards all below; never held across I/O
	result *syncResult // collects what was written
	// placement is what the plan was made from; nil for a plan of the whole Service.
	placement *pack.Placement
	// missing has the addresses that changes should have added to slices, and that are not there.
	missing map[string]struct{}
	errs    []error
}

// applyPlan makes the writes of a plan. Writes that remove endpoints which another write adds come
// last, one after the other. One of them waits only if it removes an address that a change of the
// plan should have added and did not: families, sets of ports and slices are independent. A failed
// write stops no other, except that all stop if kube-apiserver throttles or the term ends. No
// further write of a compaction begins after the Service has changed.
func (c *Syncer) applyPlan(ctx context.Context, owned *ownedShard, key Key, input *syncInput, result *syncResult, placement *pack.Placement) {
	a := &planApplier{Syncer: c, ctx: ctx, owned: owned, key: key, input: input, result: result, placement: placement}
	for _, lost := range input.lost {
		a.deleteLost(lost)
	}
	for i := range result.postponed {
		a.recordMissing(&result.postponed[i], result.postponed[i].From)
	}
	result.outcomes = make([]Outcome, len(result.plan.Changes))
	var independent, dependent []int // places in the plan
	for i := range result.plan.Changes {
		if result.plan.Changes[i].Supersedes() {
			dependent = append(dependent, i)
		} else {
			independent = append(independent, i)
		}
	}
	a.applyConcurrently(independent)
	for len(dependent) > 0 && !a.stopped() {
		i := a.takeNext(&dependent)
		if change := &result.plan.Changes[i]; a.removesMissing(change) {
			a.recordMissing(change, change.From)
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
					a.apply(i)
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

// takeNext takes one change from the list: the first that removes no address which another change
// of the list adds, or the first of all if changes exchange addresses.
func (a *planApplier) takeNext(list *[]int) int {
	changes := a.result.plan.Changes
	next := max(slices.IndexFunc(*list, func(i int) bool {
		return !slices.ContainsFunc(*list, func(other int) bool {
			return other != i && removesAny(&changes[i], addedAddresses(&changes[other], changes[other].From))
		})
	}), 0)
	i := (*list)[next]
	*list = slices.Delete(*list, next, next+1)
	return i
}

// addedAddresses returns the addresses that a change adds to what its slice has; has is nil if
// there is no slice. Another set of ports makes all addresses new.
func addedAddresses(change *pack.Change, has *discoveryv1.EndpointSlice) map[string]struct{} {
	if change.Verb == planned.Delete {
		return nil
	}
	added := addressesOf(change.Slice)
	if has != nil && desired.KeyOf(has.Ports) == desired.KeyOf(change.Slice.Ports) {
		for address := range addressesOf(has) {
			delete(added, address)
		}
	}
	return added
}

// recordMissing records the addresses that a change should have added to what its slice has.
func (a *planApplier) recordMissing(change *pack.Change, has *discoveryv1.EndpointSlice) {
	missing := addedAddresses(change, has)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.missing == nil {
		a.missing = missing
		return
	}
	maps.Copy(a.missing, missing)
}

// removesMissing returns whether a change removes an address that another one should have added.
func (a *planApplier) removesMissing(change *pack.Change) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return removesAny(change, a.missing)
}

func removesAny(change *pack.Change, of map[string]struct{}) bool {
	if len(of) == 0 || change.From == nil {
		return false
	}
	var kept map[string]struct{}
	if change.Verb == planned.Update {
		kept = addressesOf(change.Slice)
	}
	for address := range addressesOf(change.From) {
		_, stays := kept[address]
		if _, is := of[address]; is && !stays {
			return true
		}
	}
	return false
}

func addressesOf(slice *discoveryv1.EndpointSlice) map[string]struct{} {
	addresses := make(map[string]struct{}, len(slice.Endpoints))
	for i := range slice.Endpoints {
		for _, address := range slice.Endpoints[i].Addresses {
			addresses[address] = struct{}{}
		}
	}
	return addresses
}

// stopped returns whether no further write may begin.
func (a *planApplier) stopped() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.input.compacting && !a.result.interrupted {
		a.result.interrupted = a.owned.hasCause(a.key)
	}
	return a.result.throttled > 0 || a.result.interrupted || a.owned.ctx.Err() != nil
}

// apply makes the i-th change of the plan. A panic fails this change only.
func (a *planApplier) apply(i int) {
	change := a.result.plan.Changes[i]
	defer func() {
		if cause := recover(); cause != nil {
			a.logger.Error("panic in the write of a slice", "service", a.key.String(), "cause", cause, "stack", string(debug.Stack()))
			a.fail(i, change.From, fmt.Errorf("panic: %v", cause))
		}
	}()
	stored, err := a.write(change)
	state := Applied
	switch {
	case err != nil:
		if errors.Is(err, kube.ErrConflict) && !a.readConflicting(change) {
			err = fmt.Errorf("%w: %w", ErrSlicesUnread, err)
		}
		a.fail(i, change.From, err)
		if kube.Denied(err) {
			a.writeWithoutAdded(change)
		}
		return
	case stored == nil:
		stored, state = change.Slice, NotNeeded
	}
	if err := a.recordWrite(change, stored); err != nil {
		a.fail(i, stored, err)
		return
	}
	a.setOutcome(i, state, nil)
}

// writeWithoutAdded writes what an update that is denied changes besides its new endpoints. One of
// these may be the cause, and the slice must not keep endpoints that are gone or not ready.
func (a *planApplier) writeWithoutAdded(change pack.Change) {
	if change.Verb != planned.Update || change.Added == 0 || change.Removed+change.Changed == 0 || desired.KeyOf(change.From.Ports) != desired.KeyOf(change.Slice.Ports) {
		return
	}
	rest := *change.Slice
	rest.Endpoints = rest.Endpoints[:len(rest.Endpoints)-change.Added] // a plan appends them
	change.Slice, change.Added = &rest, 0
	stored, err := a.write(change)
	if err == nil {
		err = a.recordWrite(change, stored)
	}
	if err != nil {
		a.logger.Debug("the slice is not written without its new endpoints either", "service", a.key.String(), "error", err)
	}
}

func (a *planApplier) setOutcome(i int, state OutcomeState, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.outcomes[i] = Outcome{State: state, Err: err, Time: time.Now()}
}

// recordWrite records a stored change. It returns an error if the slice was stored otherwise.
func (a *planApplier) recordWrite(change pack.Change, stored *discoveryv1.EndpointSlice) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch change.Verb {
	case planned.Create:
		a.result.lastPlan.Creates++
	case planned.Update:
		a.result.lastPlan.Updates++
	case planned.Delete:
		a.result.lastPlan.Deletes++
	}
	if isLost(change.Slice, stored) {
		return lostError(change, stored)
	}
	if !sameEndpoints(change.Slice, stored) {
		return fmt.Errorf("%s endpointslice %s/%s: %s: %w", change.Verb, stored.Namespace, stored.Name, storedText(change.Slice, stored), kube.ErrStoredOtherwise)
	}
	switch {
	case a.placement == nil:
	case change.Verb == planned.Delete:
		a.placement.Delete(change.Slice.Name)
	case !a.placement.Put(stored):
		return fmt.Errorf("%s endpointslice %s/%s: the slice cannot be planned by its Pods", change.Verb, stored.Namespace, stored.Name)
	}
	return nil
}

// sameEndpoints returns whether a slice was stored with the addresses, conditions and ports that
// were written. Other fields decide no traffic, or less. Normally the stored slice shares its
// endpoints.
func sameEndpoints(written, stored *discoveryv1.EndpointSlice) bool {
	shared := len(written.Endpoints) == len(stored.Endpoints) && (len(written.Endpoints) == 0 || &written.Endpoints[0] == &stored.Endpoints[0])
	return (shared || slices.EqualFunc(written.Endpoints, stored.Endpoints, func(a, b discoveryv1.Endpoint) bool {
		return slices.Equal(a.Addresses, b.Addresses) && equality.Semantic.DeepEqual(a.Conditions, b.Conditions)
	})) && equality.Semantic.DeepEqual(written.Ports, stored.Ports)
}

// storedText says what differs in a slice that was stored otherwise than it was written.
func storedText(written, stored *discoveryv1.EndpointSlice) string {
	missing := addressesOf(written)
	for address := range addressesOf(stored) {
		delete(missing, address)
	}
	if len(missing) == 0 {
		return "the endpoints or ports differ"
	}
	return fmt.Sprintf("%d of its addresses are missing, the first one is %s", len(missing), slices.Min(slices.Collect(maps.Keys(missing))))
}

// fail records that the i-th change is not stored as planned. has is what its slice has instead.
func (a *planApplier) fail(i int, has *discoveryv1.EndpointSlice, err error) {
	a.setOutcome(i, Failed, err)
	if errors.Is(err, errLost) {
		has = nil
	}
	a.recordMissing(&a.result.plan.Changes[i], has)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.owned.ctx.Err() != nil: // applyPlan returns it
	case errors.Is(err, kube.ErrNamespaceTerminating):
		a.logger.Debug("slice not created", "service", a.key.String(), "error", err)
		a.result.terminating = true
	default:
		a.errs = append(a.errs, err)
		a.result.throttled = max(a.result.throttled, throttleDelay(err))
	}
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
	if change.Verb == planned.Create {
		if err := a.lostRemains(); err != nil {
			return nil, err
		}
	}
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
	if change.Verb == planned.Delete {
		a.index.PutTombstone(change.Slice)
		a.owned.finishWrite(a.key, change.Verb, change.Slice, now)
		return stored, nil
	}
	if change.Verb == planned.Create && isLost(change.Slice, stored) {
		a.owned.failWrite(a.key, name, false)
		a.deleteLost(stored)
		return nil, lostError(change, stored)
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
