package slicecontroller

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// holding is one shard for one term, with what is remembered of its Services
// beside the cache. It all ends with the term: others may have worked on them
// before the next one.
type holding struct {
	shard int
	// ctx ends with the term; every write for the shard is made with it.
	ctx context.Context
	// underway counts passes. None begins once the ledger has let the holding go.
	underway sync.WaitGroup

	mu sync.Mutex // guards all below; never held across I/O
	// report takes reports on the work; nil once the holding is over.
	report func(error)
	// begun says that the cache is known to show what the last holder left; no pass
	// begins before.
	begun   bool
	records map[Key]*serviceRecord
	// failures has those that fail.
	failures map[Key]failure
}

func newHolding(ctx context.Context, shard int, report func(error)) *holding {
	return &holding{
		shard:    shard,
		ctx:      ctx,
		report:   report,
		records:  map[Key]*serviceRecord{},
		failures: map[Key]failure{},
	}
}

// tell reports on the work unless the holding is over.
func (h *holding) tell(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.report != nil {
		h.report(err)
	}
}

// finish waits for the passes under way; after it nothing is reported, and
// whoever waits for a pass is told that none will come. It returns the slices that
// are still to be read.
func (h *holding) finish() (unread []Key) {
	h.underway.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.report = nil
	for key, entry := range h.records {
		entry.due.answer(outcome{err: ErrNotHeld})
		for name := range entry.unread {
			unread = append(unread, keyOf(key.Namespace, name))
		}
	}
	return unread
}

// record returns that of a Service and makes it if there is none. It needs h.mu.
func (h *holding) record(key Key) *serviceRecord {
	entry := h.records[key]
	if entry == nil {
		entry = &serviceRecord{}
		h.records[key] = entry
	}
	return entry
}

// mark notes that a Service needs a pass, since when it does, and how long it must
// wait for it because it fails. ready is false as long as passes do not begin at all.
func (h *holding) mark(key Key, c cause, now time.Time) (since time.Time, wait time.Duration, ready bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.record(key)
	entry.due.add(key.Namespace, c, now)
	if failed := h.failures[key]; failed.count > 0 {
		wait = failed.left(now)
	}
	return entry.due.since, wait, h.begun
}

// begin lets passes begin.
func (h *holding) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun = true
}

// ask marks a Service for somebody who waits for the outcome.
func (h *holding) ask(key Key, waiting chan<- outcome, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.record(key)
	entry.due.add(key.Namespace, cause{trigger: ByRequest}, now)
	entry.due.waiting = append(entry.due.waiting, waiting)
}

// take starts a pass over a Service with all that is due, or by what the budget
// allows if that is compaction. ok is false when nothing is due, or not yet; it will
// be after a positive wait.
func (h *holding) take(key Key, service *corev1.Service, budget *budget, now time.Time) (taken job, wait time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.records[key]
	if entry == nil || !h.begun {
		return job{}, 0, false
	}
	var granted int
	if entry.due.empty() {
		if wait = entry.compactable(now); wait == 0 {
			granted, wait = budget.take(now, compactionBudget)
		}
		if wait != 0 {
			return job{}, wait, false
		}
	}
	taken = job{
		due:        entry.due,
		service:    service,
		unread:     entry.unread,
		creation:   entry.service == nil || entry.service.UID != service.UID,
		resting:    entry.rivalry.Resting(now) > 0,
		compacting: entry.due.empty(),
		budget:     granted,
	}
	if taken.compacting {
		taken.trigger, taken.since = ByCompaction, now
	}
	if entry.service == service {
		taken.placement = entry.placement
	}
	if taken.creation {
		entry.written, entry.unsure, entry.last = nil, nil, LastPlan{}
	}
	entry.service, entry.placement, entry.due, entry.underway = service, nil, due{}, true
	entry.unread = nil
	return taken, 0, true
}

// end finishes a pass. It returns whether, and after how long, another one is
// needed for what this one left undone.
func (h *holding) end(key Key, done job, how outcome, now time.Time) (again bool, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.record(key)
	entry.underway, entry.writing = false, nil
	entry.last, entry.placement = how.last, how.placement
	entry.noteQuiet(done, how, now)
	if how.err != nil {
		failed := failure{count: h.failures[key].count + 1, err: how.err, at: now, rest: how.rest}
		h.failures[key] = failed
		trigger := ByRetry
		if how.conflict {
			trigger = ByConflict
		}
		entry.due.add(key.Namespace, cause{trigger: trigger, at: done.changed}, now)
		if how.reread && failed.count == 1 {
			return true, 0
		}
		return true, failed.pause()
	}
	delete(h.failures, key)
	switch {
	case how.withheld:
		entry.due.add(key.Namespace, cause{trigger: ByRetry, at: done.changed}, now)
		return true, max(entry.rivalry.Resting(now), firstRetry)
	case entry.due.whole:
		return true, 0
	case !entry.due.empty():
		return false, 0 // pods that changed meanwhile, for which whoever marked them asked in their time
	case !entry.quiet.IsZero():
		return true, entry.quiet.Sub(now)
	default:
		return false, 0
	}
}

// forget drops what is known of a Service that is gone or not managed.
func (h *holding) forget(key Key, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry := h.records[key]; entry != nil {
		entry.due.answer(outcome{err: err})
	}
	delete(h.records, key)
	delete(h.failures, key)
}

func (h *holding) failureOf(key Key) failure {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failures[key]
}

// describe fills in what the term knows of a Service.
func (h *holding) describe(key Key, state *State, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.records[key]
	if entry == nil {
		return
	}
	state.Last = entry.last
	state.Written = maps.Clone(entry.written)
	state.ContendedBy = entry.rivalry.By(now)
	if failed := h.failures[key]; failed.count > 0 {
		state.History.LastError, state.History.Failures = failed.err.Error(), failed.count
	}
}

// pending reports whether something is left to do for a Service.
func (h *holding) pending(key Key) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.records[key]
	return !h.begun || entry != nil && (entry.underway || !entry.due.empty())
}

// failing counts the Services that fail and gives the one that failed last.
func (h *holding) failing() (count int, last Key, how failure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, failed := range h.failures {
		if failed.at.After(how.at) {
			last, how = key, failed
		}
	}
	return len(h.failures), last, how
}

// behind reports whether it is still to be found out what the last holder left.
func (h *holding) behind() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.begun
}
