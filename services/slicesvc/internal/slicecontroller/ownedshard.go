package slicecontroller

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// ownedShard is one shard for one term, with the records of its Services. The records end with the
// term: another replica may sync the Services before the next one.
type ownedShard struct {
	shard int
	// ctx ends with the term. Every write for the shard uses it.
	ctx context.Context
	// syncs counts running syncs. None begins after the tracker has released the shard.
	syncs sync.WaitGroup

	mu sync.Mutex // guards all below; never held across I/O
	// reportFunc is nil after finish.
	reportFunc func(error)
	// caughtUp says that the cache has the writes of the last leader. No sync begins before.
	caughtUp bool
	records  map[Key]*serviceRecord
	// failures has the failing Services.
	failures map[Key]failure
	// contended has the Services whose updates were suspended, until the other writer stops.
	contended map[Key]struct{}
	// blocked is why the shard has not caught up since blockedSince.
	blocked      error
	blockedSince time.Time
}

func newOwnedShard(ctx context.Context, shard int, report func(error)) *ownedShard {
	return &ownedShard{
		shard:      shard,
		ctx:        ctx,
		reportFunc: report,
		records:    map[Key]*serviceRecord{},
		failures:   map[Key]failure{},
		contended:  map[Key]struct{}{},
	}
}

// report reports the health of the shard's loop. It does nothing after finish.
func (s *ownedShard) report(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reportFunc != nil {
		s.reportFunc(err)
	}
}

// finish waits for the running syncs and answers all waiters. It returns the slices that are still
// to be read.
func (s *ownedShard) finish() (unread []Key) {
	s.syncs.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reportFunc = nil
	for key, record := range s.records {
		record.pending.notify(syncResult{err: ErrShardNotHeld})
		for name := range record.unread {
			unread = append(unread, keyOf(key.Namespace, name))
		}
	}
	return unread
}

func (s *ownedShard) markCaughtUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caughtUp, s.blocked = true, nil
}

// block records why the shard cannot catch up, and reports it.
func (s *ownedShard) block(err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blocked == nil {
		s.blockedSince = now
	}
	s.blocked = err
	if s.reportFunc != nil {
		s.reportFunc(err)
	}
}

func (s *ownedShard) catchingUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.caughtUp
}

// addCause records why a Service needs a sync. It returns the time of the first cause, and how long
// the Service must wait because it fails.
func (s *ownedShard) addCause(key Key, cause syncCause, now time.Time) (since time.Time, wait time.Duration, caughtUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	record.pending.add(key.Namespace, cause, now)
	if failed := s.failures[key]; failed.count > 0 {
		wait = failed.delayAfterEvent(now)
	}
	return record.pending.since, wait, s.caughtUp
}

// deferPods makes the next sync of a Service plan some Pods of its namespace too. A Service that
// was not synced in this term needs no record of it: its first sync plans everything.
func (s *ownedShard) deferPods(key Key, pods []Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.records[key]
	if record == nil {
		return
	}
	for _, pod := range pods {
		if pod.Namespace == key.Namespace {
			record.deferred = addName(record.deferred, pod.Name)
		}
	}
}

// addWaiter requests a sync whose result is sent to the waiter.
func (s *ownedShard) addWaiter(key Key, waiting waiter, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	record.pending.add(key.Namespace, syncCause{trigger: ByRequest}, now)
	record.pending.waiters = append(record.pending.waiters, waiting)
}

// startSync starts a sync with everything that is pending, or a compaction if nothing is pending
// and the budget allows it. ok is false if nothing is due; a positive wait says when something will
// be.
func (s *ownedShard) startSync(key Key, service *corev1.Service, budget *compactionBudget, now time.Time) (input syncInput, wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.records[key]
	if record == nil || !s.caughtUp {
		return syncInput{}, 0, false
	}
	var granted int
	if record.pending.empty() {
		if wait = record.untilCompaction(now); wait == 0 {
			granted, wait = budget.take(now, compactionWrites)
		}
		if wait != 0 {
			return syncInput{}, wait, false
		}
	}
	input = syncInput{
		pendingSync:      record.pending,
		service:          service,
		unread:           record.unread,
		firstSync:        record.service == nil || record.service.UID != service.UID,
		suspended:        record.contention.suspendedFor(now) > 0,
		compacting:       record.pending.empty(),
		compactionWrites: granted,
	}
	if input.compacting {
		input.trigger, input.since = ByCompaction, now
	} else {
		input.takeDeferred(record)
	}
	if record.service == service {
		input.placement = record.placement
	}
	if input.firstSync {
		record.writeTimes, record.maybeStored, record.lastPlan = nil, nil, LastPlan{}
	}
	record.service, record.placement, record.pending, record.syncing = service, nil, pendingSync{}, true
	record.unread = nil
	return input, 0, true
}

// finishSync records the result of a sync. It returns whether another sync is needed for what this
// one left undone, and after which delay.
func (s *ownedShard) finishSync(key Key, input syncInput, result syncResult, now time.Time) (again bool, delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	record.syncing, record.observed = false, nil
	record.placement = result.placement
	if result.rejected {
		record.restoreDeferred(input)
	} else {
		record.lastPlan = result.lastPlan
		record.scheduleCompaction(input, result, now)
	}
	if result.err != nil {
		failed := s.failures[key].next(result, now)
		s.failures[key] = failed
		trigger := ByRetry
		if result.conflict {
			trigger = ByConflict
		}
		record.pending.add(key.Namespace, syncCause{trigger: trigger, urgency: input.urgency, changeTime: input.changeTime}, now)
		if result.replan && failed.count == 1 {
			return true, 0
		}
		return true, failed.delay()
	}
	delete(s.failures, key)
	switch {
	case result.suspended:
		record.pending.add(key.Namespace, syncCause{trigger: ByRetry, changeTime: input.changeTime}, now)
		return true, max(record.contention.suspendedFor(now), minRetryDelay)
	case record.pending.whole:
		return true, 0
	case !record.pending.empty():
		return false, 0 // changes of Pods during the sync: requestSync has queued the Service
	case !record.quietAt.IsZero():
		return true, record.quietAt.Sub(now)
	default:
		return false, 0
	}
}

// forget drops the record of a Service that is deleted or not managed. Waiters get err.
func (s *ownedShard) forget(key Key, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if record := s.records[key]; record != nil {
		record.pending.notify(syncResult{err: err})
	}
	delete(s.records, key)
	delete(s.failures, key)
	delete(s.contended, key)
}

// beginWrite records that a write of a slice begins. Until its answer, events of the slice may be
// of that write.
func (s *ownedShard) beginWrite(key Key, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	if record.observed == nil {
		record.observed = map[string]*observedVersion{}
	}
	record.observed[name] = &observedVersion{}
}

// finishWrite records the answer of a write. If a watch showed a newer version meanwhile, another
// writer changed the slice since, and finishWrite returns that version.
func (s *ownedShard) finishWrite(key Key, verb pack.Verb, stored *discoveryv1.EndpointSlice, now time.Time) (newer observedVersion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	observed := record.observed[stored.Name]
	delete(record.observed, stored.Name)
	delete(record.maybeStored, stored.Name)
	if verb == pack.Delete {
		delete(record.writeTimes, stored.Name)
		return observedVersion{}
	}
	if record.writeTimes == nil {
		record.writeTimes = map[string]time.Time{}
	}
	record.writeTimes[stored.Name] = now
	if observed == nil || !observed.observed || (!observed.deleted && index.CompareVersions(observed.version, stored.ResourceVersion) <= 0) {
		return observedVersion{}
	}
	record.pending.add(key.Namespace, syncCause{trigger: BySlice}, now)
	return *observed
}

// failWrite records a write without a conclusive answer. If a watch showed the slice meanwhile, the
// slice must be read. maybeStored says that the write may be stored.
func (s *ownedShard) failWrite(key Key, name string, maybeStored bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	observed := record.observed[name]
	delete(record.observed, name)
	if maybeStored {
		record.maybeStored = addName(record.maybeStored, name)
	}
	if observed != nil && observed.observed && !observed.deleted {
		record.unread = addName(record.unread, name)
	}
}

// addUnread records that the cache has an old state of a slice. The next sync of the Service reads
// the slice first, and plans the whole Service.
func (s *ownedShard) addUnread(key Key, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	record.unread = addName(record.unread, name)
	record.pending.add(key.Namespace, syncCause{trigger: BySlice}, time.Now())
}

// sliceChanged records that a slice of a Service is not as this replica wrote it. suspended says
// that it happened so often that updates are suspended from now on, because of writer.
func (s *ownedShard) sliceChanged(key Key, event sliceEvent, now time.Time) (needsSync, suspended bool, writer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	if observed := record.observed[event.name]; observed != nil {
		*observed = observedVersion{version: event.version, observed: true, deleted: event.deleted}
		return false, false, ""
	}
	if !event.terminating {
		suspended = record.recordRevert(event.name, event.writer, now)
	}
	if suspended {
		s.contended[key] = struct{}{}
	}
	delete(record.writeTimes, event.name)
	record.pending.add(key.Namespace, syncCause{trigger: BySlice}, now)
	return true, suspended, record.contention.writer(now)
}

// observeDuringWrite records an observed version if the slice is being written, and returns whether
// it is.
func (s *ownedShard) observeDuringWrite(key Key, name, version string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.records[key]
	if record == nil || record.observed[name] == nil {
		return false
	}
	record.observed[name] = &observedVersion{version: version, observed: true}
	return true
}

func (s *ownedShard) failureOf(key Key) failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures[key]
}

// failing returns the number of failing Services and the one that failed last.
func (s *ownedShard) failing() (count int, last Key, latest failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, failed := range s.failures {
		if failed.at.After(latest.at) {
			last, latest = key, failed
		}
	}
	return len(s.failures), last, latest
}

// describe sets the fields of state that the term knows.
func (s *ownedShard) describe(key Key, state *ServiceState, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.records[key]
	if record == nil {
		return
	}
	state.LastPlan = record.lastPlan
	state.WriteTimes = maps.Clone(record.writeTimes)
	if state.ContendedBy = record.contention.writer(now); state.ContendedBy != "" {
		state.ContendedSince = record.contention.since
	}
	if failed := s.failures[key]; failed.count > 0 {
		state.History.LastError, state.History.Failures = failed.err.Error(), failed.count
	}
}

func (s *ownedShard) pending(key Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.records[key]
	return !s.caughtUp || record != nil && (record.syncing || !record.pending.empty())
}

// record needs s.mu. It returns the record of a Service, a new one if there is none.
func (s *ownedShard) record(key Key) *serviceRecord {
	record := s.records[key]
	if record == nil {
		record = &serviceRecord{}
		s.records[key] = record
	}
	return record
}
