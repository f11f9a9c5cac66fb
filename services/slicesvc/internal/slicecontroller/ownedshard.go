package slicecontroller

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
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
	// contended has the Services with contention, until the other writer stops.
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

// addCause records why a Service needs a sync. It returns the time of the first cause, the urgency
// of the most urgent one, and how long the Service must wait because it fails.
func (s *ownedShard) addCause(key Key, cause syncCause, now time.Time) (since time.Time, urgency index.Urgency, wait time.Duration, caughtUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	record.pending.add(key.Namespace, cause, now)
	if failed := s.failures[key]; failed.count > 0 {
		wait = failed.delayAfterEvent(now)
	}
	return record.pending.since, record.pending.urgency, wait, s.caughtUp
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

// addWaiter requests a sync whose result is sent to the waiter. span is that of the request, or
// nil.
func (s *ownedShard) addWaiter(key Key, waiting waiter, span *trace.SpanContext, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	record.pending.add(key.Namespace, syncCause{trigger: ByRequest, span: span}, now)
	record.pending.waiters = append(record.pending.waiters, waiting)
}

// startSync starts a sync with everything that is pending, or a compaction if nothing is pending
// and the budget allows it. ok is false if nothing is due; a positive wait says when something will
// be.
func (s *ownedShard) startSync(key Key, object Object, budget *compactionBudget, now time.Time) (input syncInput, wait time.Duration, ok bool) {
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
		object:           object,
		unread:           record.unread,
		failed:           record.failed,
		lost:             record.lost,
		takers:           record.takers,
		firstSync:        record.object == nil || record.object.GetUID() != object.GetUID(),
		contended:        record.contention.pausedFor(now) > 0,
		relabelled:       record.relabelling.pausedFor(now) > 0,
		compacting:       record.pending.empty(),
		compactionWrites: granted,
	}
	// A waiter asked for a plan without repetitions. While a slice fails, its repetition is in each
	// plan, so that it counts as failing until it is made.
	input.repeating = record.takers && len(record.pending.waiters) == 0 && (record.untilCompaction(now) == 0 || len(record.failed) > 0)
	if input.compacting {
		input.trigger, input.since = ByCompaction, now
	} else {
		input.takeDeferred(record)
	}
	if record.object == object {
		input.placement = record.placement
	}
	if input.firstSync {
		record.writes, record.maybeStored, record.lastPlan = nil, nil, LastPlan{}
		record.failed, input.failed, record.withoutRecycling, record.compaction = nil, nil, false, failure{}
	}
	record.object, record.placement, record.pending, record.syncing = object, nil, pendingSync{}, true
	record.unread = nil
	return input, 0, true
}

// finishSync records the result of a sync. It returns the sync that is needed for what this one
// left undone. A retry has the priority of what it repeats.
func (s *ownedShard) finishSync(key Key, input syncInput, result syncResult, now time.Time) nextSync {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	record.syncing, record.observed = false, nil
	record.placement = result.placement
	failedNow := false
	if result.rejected {
		record.restoreDeferred(input)
	} else {
		record.lastPlan = result.lastPlan
		if result.outcomes != nil {
			record.lost = result.lost
		}
		record.scheduleCompaction(input, result, now)
		record.recordRefusal(result.terminating, now)
		record.failed, failedNow = nextFailed(&input, &result, now)
		record.withoutRecycling = len(record.failed) > 0 && (record.withoutRecycling || recycledFails(record.failed))
	}
	if result.err != nil && !failedNow {
		failed := s.failures[key].next(&result, true, now)
		s.failures[key] = failed
		record.pending.add(key.Namespace, syncCause{trigger: ByRetry, urgency: input.urgency, changeTime: input.changeTime, span: input.span}, now)
		return nextSync{needed: true, priority: input.priority(), delay: failed.delay()}
	}
	var next nextSync
	if record.pending.whole {
		// A slice changed during the sync. Other causes have queued the Service themselves.
		next = next.orAt(priorityOf(record.pending.urgency), record.contention.reactionDelay(now))
	}
	if len(record.failed) > 0 {
		s.recordSliceFailure(key, &result, now)
		trigger := ByRetry
		if errors.Is(result.err, kube.ErrConflict) {
			trigger = ByConflict
		}
		record.pending.add(key.Namespace, syncCause{trigger: trigger, urgency: input.urgency, span: input.span}, now)
		next = next.orAt(input.priority(), untilRetry(record.failed, now))
	} else {
		delete(s.failures, key)
	}
	if result.paused {
		record.pending.add(key.Namespace, syncCause{trigger: ByRetry, changeTime: input.changeTime, span: input.span}, now)
		next = next.orAt(background, max(record.pauseEnd(now), minRetryDelay))
	}
	if !record.quietAt.IsZero() && (record.pending.empty() || record.takers && !input.repeating) {
		next = next.orAt(background, record.untilCompaction(now))
	}
	return next
}

// recordSliceFailure needs s.mu. It records that slices of a Service are not stored as planned. The
// Service does not wait for them.
func (s *ownedShard) recordSliceFailure(key Key, result *syncResult, now time.Time) {
	failed := s.failures[key]
	if result.err != nil {
		failed = failed.next(result, false, now)
	}
	failed.whole = 0
	s.failures[key] = failed
}

func (s *ownedShard) withoutRecycling(key Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.records[key]
	return record != nil && record.withoutRecycling
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

// sliceChanged records that a slice of a Service is not as this replica wrote it. It returns the
// sync that follows, and the writer to report because of contention; "" for none.
func (s *ownedShard) sliceChanged(key Key, event sliceEvent, now time.Time) (next nextSync, contender string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.record(key)
	if observed := record.observed[event.name]; observed != nil {
		*observed = observedVersion{version: event.version, observed: true, deleted: event.deleted}
		return nextSync{}, ""
	}
	if record.recordEdit(event, now) {
		contender = record.contention.writer(now)
		s.contended[key] = struct{}{}
	}
	urgency := index.Lazy
	if event.edit == index.EditedContent {
		urgency = index.Urgent
	}
	record.pending.add(key.Namespace, syncCause{trigger: BySlice, urgency: urgency}, now)
	return nextSync{needed: s.caughtUp, priority: priorityOf(urgency), delay: record.reactionDelay(event.edit, now)}, contender
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
func (s *ownedShard) describe(key Key, state *SyncStatus, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.records[key]
	if record == nil {
		return
	}
	state.LastPlan = record.lastPlan
	state.WriteTimes = make(map[string]time.Time, len(record.writes))
	for name, write := range record.writes {
		state.WriteTimes[name] = write.at
	}
	state.CreationRefusedSince = record.refusedSince
	state.Failed = record.failed
	if state.ContendedBy = record.contention.writer(now); state.ContendedBy != "" {
		state.ContendedSince = record.contention.since
	}
	if failed := s.failures[key]; failed.count > 0 {
		state.History.LastError, state.History.Failures = failed.err.Error(), failed.count
	}
}

// hasCause returns whether a sync of the Service is due.
func (s *ownedShard) hasCause(key Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.records[key]
	return record != nil && !record.pending.empty()
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
