package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// firstPriority is the priority of an address that is free because its replacement is not finished.
const firstPriority = -1

// enqueue adds every finding to the queue that needs reads or writes.
func (r *reconciler) enqueue() {
	for name, finding := range r.unconfirmed {
		r.addWork(name, finding.Priority())
	}
	for name, finding := range r.findings.current {
		if r.repairsAlone(finding) && !r.needed.has(name) && r.repairs.pendingOf(name) == nil {
			r.addWork(name, finding.Priority())
		}
	}
	for _, repair := range r.repairs.unfinished {
		if r.cancelling.has(repair.ID) {
			continue
		}
		for finding := range repair.pendingFindings() {
			if !r.queue.has(finding) {
				r.addWork(finding, repair.priorityOf(finding))
			}
		}
	}
	r.repairs.backoff.prune(func(finding string) bool {
		_, unconfirmed := r.unconfirmed[finding]
		return unconfirmed || r.findings.current[finding] != nil || r.repairs.pendingOf(finding) != nil
	})
}

func (r *reconciler) addWork(finding string, priority int) {
	r.queue.add(finding, priority, r.repairs.backoff.notBefore[finding], r.repairs.backoff.hasFailed(finding))
}

// enqueueReplacements adds the addresses whose replacement an earlier leader may have left half
// done. They do not wait for the watches.
func (r *reconciler) enqueueReplacements() {
	for _, repair := range r.repairs.unfinished {
		for number, step := range repair.Steps {
			if step.Verb == planned.Create && step.Reason == allocation.ReasonReference && repair.Results[number].State == repairstore.StepPending {
				r.queue.add(step.Finding, firstPriority, time.Time{}, false)
			}
		}
	}
}

// repairsAlone reports whether the finding is repaired without approval.
func (r *reconciler) repairsAlone(finding *allocation.Finding) bool {
	return r.AutoRepair && finding.Repairable() && !r.stores.isUnclear(finding.Store) &&
		(len(r.AutoRepairCodes) == 0 || slices.Contains(r.AutoRepairCodes, finding.Code))
}

// dispatch gives findings to workers as long as one is free.
func (r *reconciler) dispatch(now time.Time) {
	for {
		finding, ok := r.queue.pop(now)
		if !ok {
			return
		}
		work := r.workOf(finding, now)
		if work == nil {
			r.queue.done(finding)
			continue
		}
		r.spawn(func(ctx context.Context) func() {
			then := work(ctx)
			return func() {
				r.queue.done(finding)
				then()
			}
		})
	}
}

// spawn calls work in another goroutine, and then the function that it returns in the goroutine of
// Run.
func (r *reconciler) spawn(work func(ctx context.Context) (then func())) {
	r.watches.running.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, workTimeout)
		defer cancel()
		then := work(ctx)
		select {
		case r.results <- then:
		case <-r.ctx.Done():
		}
	})
}

// workOf returns what a worker does for a finding, nil if there is nothing to do.
func (r *reconciler) workOf(finding string, now time.Time) func(ctx context.Context) (then func()) {
	if repair := r.repairs.pendingOf(finding); repair != nil {
		if r.cancelling.has(repair.ID) {
			return nil
		}
		if repair.wouldDeleteInUse(finding) && !r.mayDeleteInUse() {
			repair.retries[finding] = errReplacing
			repair.wasTried(finding)
			return nil // the next pass queues it again
		}
		return r.applyWork(repair, finding, now)
	}
	if unconfirmed, ok := r.unconfirmed[finding]; ok {
		return r.confirmWork(unconfirmed)
	}
	if current := r.findings.current[finding]; current != nil && r.repairsAlone(current) {
		return r.confirmWork(*current)
	}
	return nil
}

func (r *reconciler) newWorker() *worker {
	return &worker{
		Deps: r.Deps, term: r.ctx, services: r.lists, awaitRevision: r.awaitRevision, settings: r.settings, unverified: r.ranges.problem,
		stop: func() bool { return false }, completeOnly: r.watches.listErr() != nil,
	}
}

// confirmWork reads whether a finding is so now.
func (r *reconciler) confirmWork(finding allocation.Finding) func(ctx context.Context) func() {
	w := r.newWorker()
	return func(ctx context.Context) func() {
		isSo, err := w.confirm(ctx, finding)
		return func() { r.confirmed(finding, isSo, err) }
	}
}

// confirmed opens a finding that a live read confirmed, and marks it for its repair.
func (r *reconciler) confirmed(read allocation.Finding, isSo bool, err error) {
	now, finding := time.Now(), read.Name
	unconfirmed, opens := r.unconfirmed[finding]
	indexed, _ := r.index.Finding(finding)
	isSame := indexed.State == allocation.StateOpen && indexed.Etag() == read.Etag()
	switch {
	case err != nil:
		r.repairs.readErrs[finding] = err
		r.repairs.backoff.failed(finding, now)
		toRepair := r.findings.current[finding]
		if opens {
			toRepair = &unconfirmed
		}
		if isRejected(err) && toRepair != nil && r.repairsAlone(toRepair) {
			r.Reporter.StepRefused(toRepair.Steps[0], err) // the repair cannot even begin
		}
	case opens && !isSo:
		r.repairs.read(finding)
		r.repairs.backoff.rejected(finding, now)
		r.index.RestartGracePeriod(finding)
		delete(r.unconfirmed, finding)
	case !isSo:
		r.repairs.read(finding)
		r.repairs.backoff.started(finding, now)
	case isSame:
		r.repairs.read(finding)
		r.queue.recovered()
		if opens {
			delete(r.unconfirmed, finding)
			r.updateFindings(allocation.Delta{Changed: []allocation.Finding{indexed}}, now)
		}
		if current := r.findings.current[finding]; current != nil && r.repairsAlone(current) {
			r.needed[finding] = struct{}{}
		}
	default: // it changed while it was read; the next pass queues it again
		r.repairs.read(finding)
	}
	r.requestPass(now.Add(changeDelay))
}

// applyWork applies the pending steps of a finding. For a bit, it takes along the ready findings of
// the repair whose bits one write sets or clears.
func (r *reconciler) applyWork(repair *unfinishedRepair, finding string, now time.Time) func(ctx context.Context) func() {
	numbers := repair.pendingStepsOf(finding)
	first := repair.Steps[numbers[0]]
	findings := []string{finding}
	if first.Store.IsBitmap() {
		for number, step := range repair.Steps {
			if len(numbers) < maxBatch && step.Finding != finding && repair.Results[number].State == repairstore.StepPending &&
				step.Store == first.Store && step.Range == first.Range && step.Frees() == first.Frees() && r.queue.take(step.Finding, now) {
				numbers, findings = append(numbers, number), append(findings, step.Finding)
			}
		}
	}
	var steps []allocation.Step
	for _, number := range numbers {
		steps = append(steps, repair.Steps[number])
	}
	w, id := r.newWorker(), repair.ID
	w.stop = func() bool { return r.cancelling.has(id) }
	repair.running++
	replacing := 0
	if repair.wouldDeleteInUse(finding) {
		replacing = 1
	}
	r.replacing += replacing
	return func(ctx context.Context) func() {
		outcomes := w.apply(ctx, steps)
		return func() {
			r.replacing -= replacing
			for _, of := range findings[1:] {
				r.queue.done(of)
			}
			r.applied(id, numbers, outcomes)
		}
	}
}

// maxBatch bounds the bits that one write sets or clears.
const maxBatch = 50

// applied takes the outcomes of steps over into their repair.
func (r *reconciler) applied(id string, numbers []int, outcomes []outcome) {
	repair := r.repairs.find(id)
	if repair == nil {
		return // a lost answer was the end of the repair
	}
	now := time.Now()
	repair.running--
	for i, number := range numbers {
		step, of := repair.Steps[number], outcomes[i]
		switch {
		case repair.Results[number].State != repairstore.StepPending:
			continue
		case of.State != repairstore.StepPending:
			repair.tried(number, nil)
			repair.setResult(number, of.StepResult)
			delete(repair.retries, step.Finding)
			r.repairs.backoff.succeeded(step.Finding)
			r.queue.recovered()
		case of.untried, errors.Is(of.err, errWaiting), r.ctx.Err() != nil:
		case isRejected(of.err) && !repair.Requester.IsAutomatic() && !repair.isHalfReplaced(step.Finding):
			repair.tried(number, of.err)
			repair.setResult(number, failedStep(of.err))
		default:
			repair.tried(number, of.err)
			repair.retries[step.Finding] = of.err
			r.retry(repair, number, of.err, now)
		}
		repair.wasTried(step.Finding)
	}
	r.requestPass(now.Add(changeDelay))
}

// manyAttempts is after how many attempts of a step one without an answer counts as refused: about
// five minutes. A webhook that never answers looks like a kube-apiserver that is down.
const manyAttempts = 60

// retry queues a finding whose step could not be written.
func (r *reconciler) retry(repair *unfinishedRepair, number int, err error, now time.Time) {
	step, backoff := repair.Steps[number], r.repairs.backoff
	if isRejected(err) || repair.Progress.Steps[number].Attempts >= manyAttempts {
		r.Reporter.StepRefused(step, err)
	}
	switch {
	case repair.isHalfReplaced(step.Finding):
		backoff.halfReplaced(step.Finding, now)
	case isRejected(err):
		backoff.refused(step.Finding, now)
		r.Logger.Warn("repair step refused; it is tried again", "repair", repair.ID, "verb", step.Verb, "subject", step.Subject, "error", err)
		r.recordFindingNamed(decisions.WriteRefused, step.Finding, fmt.Sprintf("%s %s %s: %v; it is tried again", step.Verb, step.Store, step.Subject, err))
	default:
		backoff.failed(step.Finding, now)
	}
	r.addWork(step.Finding, repair.priorityOf(step.Finding))
}

// revisionWait asks for the open findings once the index has a range at a revision.
type revisionWait struct {
	store    allocation.Store
	revision int64
	findings []string
	until    time.Time
	// reply holds one answer, so that the goroutine of Run never waits for the worker.
	reply chan set
}

// catchUpTimeout bounds how long a step waits for the watch of ranges, which is usually
// milliseconds behind.
const catchUpTimeout = 5 * time.Second

// awaitRevision is called by workers; see worker.awaitRevision.
func (r *reconciler) awaitRevision(ctx context.Context, store allocation.Store, revision int64, findings []string) (set, error) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	asked := revisionWait{store: store, revision: revision, findings: findings, until: time.Now().Add(catchUpTimeout), reply: make(chan set, 1)}
	select {
	case r.waits <- asked:
	case <-ctx.Done():
		return nil, lateRange(ctx, store, revision)
	}
	select {
	case open := <-asked.reply:
		return open, nil
	case <-ctx.Done():
		return nil, lateRange(ctx, store, revision)
	}
}

func lateRange(ctx context.Context, store allocation.Store, revision int64) error {
	return fmt.Errorf("watch range %s: %w: revision %d has not come yet: %w", RangeName(store), rangestore.ErrUnavailable, revision, context.Cause(ctx))
}

// answerWaits answers the workers whose revision the index has reached.
func (r *reconciler) answerWaits() {
	if len(r.waiting) == 0 {
		return
	}
	now, compared := time.Now(), false
	r.waiting = slices.DeleteFunc(r.waiting, func(asked revisionWait) bool {
		if r.index.BitmapRevision(asked.store) < asked.revision {
			return now.After(asked.until)
		}
		if !compared {
			r.compare(now)
			compared = true
		}
		open := set{}
		for _, name := range asked.findings {
			if finding, ok := r.index.Finding(name); ok && finding.State == allocation.StateOpen {
				open[name] = struct{}{}
			}
		}
		asked.reply <- open
		return true
	})
}

// isConflict reports whether another writer was faster.
func isConflict(err error) bool {
	return errors.Is(err, guarded.ErrConflict) || errors.Is(err, rangestore.ErrConflict)
}

// conflicting returns the stores in which another writer was faster than a step that is still
// pending.
func (rs *repairs) conflicting() []allocation.Store {
	stores := map[allocation.Store]bool{}
	for _, repair := range rs.unfinished {
		for number, step := range repair.Steps {
			if repair.Results[number].State == repairstore.StepPending && isConflict(repair.retries[step.Finding]) {
				stores[step.Store] = true
			}
		}
	}
	return slices.Collect(maps.Keys(stores))
}
