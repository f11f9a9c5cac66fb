package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const (
	// maxAutoSteps bounds the steps of an automatic repair, so that a person can read it.
	maxAutoSteps = 100
	// maxFailures bounds the batches that fail in one pass. After as many failures, which are
	// typical of an unavailable dependency, repairs pause for failurePause.
	maxFailures, failurePause = 3, time.Second
)

// repair starts automatic repairs and continues unfinished ones, as far as the backoff of their
// findings is over. Its error is about the store or the term. Errors of single findings are in
// repairs.retryErr.
func (r *reconciler) repair(ctx context.Context, now time.Time) error {
	if err := r.reloadRepairs(ctx); err != nil {
		return err
	}
	pending := r.repairs.pendingFindings()
	r.repairs.prune(func(finding string) bool {
		_, current := r.findings.current[finding]
		return current || pending.has(finding)
	})
	if now.Before(r.repairs.pausedUntil) {
		return nil
	}
	r.repairs.failuresLeft = maxFailures
	defer func() {
		if r.repairs.failuresLeft == 0 {
			r.repairs.pausedUntil = time.Now().Add(failurePause)
		}
	}()
	if r.AutoRepair {
		if err := r.startAutomatic(ctx, now, pending); err != nil {
			return err
		}
	}
	unfinished := slices.Clone(r.repairs.unfinished)
	slices.SortStableFunc(unfinished, func(a, b *unfinishedRepair) int { return allocation.CompareSteps(a.nextStep(), b.nextStep()) })
	for _, repair := range unfinished {
		if err := r.run(ctx, repair, func(finding string) bool { return r.repairs.backoff.ready(finding, now) }); err != nil {
			return err
		}
	}
	return nil
}

// startAutomatic begins and runs one repair of the safe findings that are ready and not pending in
// another repair.
func (r *reconciler) startAutomatic(ctx context.Context, now time.Time, pending set) error {
	findings := slices.DeleteFunc(r.findings.repairable(), func(f allocation.Finding) bool {
		return !r.repairs.backoff.ready(f.Name, now) || pending.has(f.Name)
	})
	if len(findings) == 0 {
		return nil
	}
	steps := limitSteps(allocation.PlanRepair(findings).Safe().Steps, maxAutoSteps)
	for finding := range countSteps(steps) {
		r.repairs.backoff.started(finding, now)
	}
	steps = r.stillNeeded(ctx, steps)
	if len(steps) == 0 {
		return nil
	}
	begun, err := r.begin(ctx, repairstore.Start{
		ID: repairstore.NewID(), Requester: allocation.Caller{User: allocation.AutomaticUser}, Steps: steps,
	})
	if err != nil {
		return err
	}
	return r.run(ctx, begun, func(string) bool { return true })
}

// stillNeeded returns the steps of the findings whose first step could be applied now, so that no
// repair is stored for what kube-apiserver has repaired meanwhile. A finding whose live reads fail
// is left out, and its error is in repairs.startErrs.
func (r *reconciler) stillNeeded(ctx context.Context, steps []allocation.Step) []allocation.Step {
	counts, needed := countSteps(steps), map[string]bool{}
	var first []allocation.Step
	for _, step := range steps {
		if _, seen := needed[step.Finding]; !seen {
			needed[step.Finding] = false
			first = append(first, step)
		}
	}
	for len(first) > 0 && r.repairs.failuresLeft > 0 {
		batch := first[:batchLength(first)]
		live, err := r.readLive(ctx, batch)
		if err != nil {
			r.repairs.failuresLeft--
		}
		for _, step := range batch {
			if err != nil {
				r.repairs.startErrs[step.Finding] = err
				continue
			}
			delete(r.repairs.startErrs, step.Finding)
			result, _ := allocation.Check(step, live.of(step))
			needed[step.Finding] = result == allocation.CheckPassed || result == allocation.CheckUnneeded && counts[step.Finding] > 1
		}
		first = first[len(batch):]
	}
	return stepsOf(steps, needed)
}

// nextRepair returns when the next finding is ready to be repaired, false if none needs a repair.
func (r *reconciler) nextRepair() (time.Time, bool) {
	var next time.Time
	found := false
	add := func(finding string) {
		if at := r.repairs.backoff.notBefore[finding]; !found || at.Before(next) {
			next, found = at, true
		}
	}
	for _, repair := range r.repairs.unfinished {
		if r.cancelling.has(repair.ID) {
			continue // the request comes between two passes, or its caller leaves
		}
		for finding := range repair.pendingFindings() {
			add(finding)
		}
	}
	if r.AutoRepair {
		for name, finding := range r.findings.current {
			if finding.Repairable() {
				add(name)
			}
		}
	}
	if next.Before(r.repairs.pausedUntil) {
		next = r.repairs.pausedUntil
	}
	return next, found
}

// begin stores a repair before its first step.
func (r *reconciler) begin(ctx context.Context, start repairstore.Start) (*unfinishedRepair, error) {
	start.Started = time.Now()
	if err := r.RepairStore.Begin(ctx, start); err != nil {
		r.repairs.outdated = true // the repair may be stored, and only the answer lost
		return nil, err
	}
	r.Logger.InfoContext(ctx, "repair started", "repair", start.ID, "requester", start.Requester.User, "steps", len(start.Steps))
	begun := newUnfinishedRepair(repairstore.Repair{Start: start, Results: make([]repairstore.StepResult, len(start.Steps))})
	begun.Progress.Attempts = 0 // run counts the first one
	r.repairs.unfinished = append(r.repairs.unfinished, begun)
	return begun, nil
}

// runNow runs a repair without waiting for the backoff of its findings, and returns it with its
// results. A step that could not be written stays pending. The error is about the store or the
// term.
func (r *reconciler) runNow(ctx context.Context, repair *unfinishedRepair) (repairstore.Repair, error) {
	r.repairs.failuresLeft = maxFailures
	err := r.run(ctx, repair, func(string) bool { return true })
	if err != nil && repair.Ended.IsZero() {
		err = fmt.Errorf("repair %s is not finished, it will be continued: %w", repair.ID, err)
	}
	result := repair.Repair
	result.Results = slices.Clone(repair.Results)
	return result, err
}

// run applies the pending steps of the ready findings of a repair, and ends the repair if no step
// is pending any more. A step that cannot be written now stays pending with its finding, and the
// other findings go on. The error is about the store or the term.
func (r *reconciler) run(ctx context.Context, repair *unfinishedRepair, ready func(finding string) bool) error {
	r.published.running.Store(&repair.ID)
	defer r.published.running.Store(nil)
	r.stop = func() bool { return r.cancelling.has(repair.ID) }
	failed, takenUp := set{}, false
	for r.repairs.failuresLeft > 0 && !r.stop() {
		if skipped := repair.stepsToSkip(r.findings.isIgnored); len(skipped) > 0 {
			if err := r.record(ctx, repair, skipped); err != nil {
				return err
			}
			continue
		}
		batch := repair.nextBatch(func(finding string) bool { return ready(finding) && !failed.has(finding) })
		if len(batch) == 0 {
			break
		}
		if !takenUp {
			takenUp, repair.unsaved = true, true
			repair.Progress.Attempts++
		}
		steps := make([]allocation.Step, 0, len(batch))
		for _, number := range batch {
			steps = append(steps, repair.Steps[number])
		}
		results, errs := r.applyBatch(ctx, steps)
		finished := map[int]repairstore.StepResult{}
		for i, number := range batch {
			finding := steps[i].Finding
			if errors.Is(errs[i], errCancelling) {
				errs[i] = nil
				continue
			}
			repair.tried(number, errs[i])
			if results[i].State != repairstore.StepPending {
				finished[number] = results[i]
				delete(repair.retries, finding)
				r.repairs.backoff.succeeded(finding)
				continue
			}
			failed[finding] = struct{}{}
			repair.retries[finding] = errs[i]
			r.repairs.backoff.failed(finding, time.Now())
		}
		if err := r.record(ctx, repair, finished); err != nil {
			return err
		}
		if err := errors.Join(errs...); err != nil {
			r.repairs.failuresLeft--
			if ctx.Err() != nil || errors.Is(err, term.ErrEnded) || errors.Is(err, term.ErrNone) {
				return err
			}
		}
	}
	if len(repair.pendingFindings()) > 0 {
		return nil
	}
	return r.end(ctx, repair)
}

// record stores the results of steps and the progress, and updates the repair. A progress without
// results is not worth an error of a call that has ended.
func (r *reconciler) record(ctx context.Context, repair *unfinishedRepair, results map[int]repairstore.StepResult) error {
	if len(results) == 0 && (!repair.unsaved || ctx.Err() != nil) {
		return nil
	}
	if err := r.RepairStore.Record(ctx, repair.ID, results, repair.Progress); err != nil {
		r.repairs.outdated = true // some results may be stored, and only the answer lost
		return err
	}
	repair.unsaved = false
	for number, result := range results {
		step := repair.Steps[number]
		repair.Results[number] = result
		if result.State == repairstore.StepDone {
			r.findings.markRepaired(step.Finding, repair.ID)
		}
		r.Logger.InfoContext(ctx, "repair step", "repair", repair.ID, "verb", step.Verb, "store", step.Store,
			"subject", step.Subject, "reason", step.Reason, "state", result.State, "error", result.Error)
		r.Reporter.StepFinished(step, result)
	}
	return nil
}

// end stores the end of a repair without pending steps, and deletes the oldest repairs.
func (r *reconciler) end(ctx context.Context, repair *unfinishedRepair) error {
	ended := time.Now()
	if err := r.RepairStore.End(ctx, repair.ID, ended); err != nil {
		r.repairs.outdated = true // the end may be stored, and only the answer lost
		return fmt.Errorf("end of repair %s: %w", repair.ID, err)
	}
	repair.Ended = ended
	r.Logger.InfoContext(ctx, "repair ended", "repair", repair.ID, "complete", repair.Complete())
	_, err := r.finish(ctx, repair)
	return err
}

// reloadRepairs reads the repairs again if the answer to a write was lost.
func (r *reconciler) reloadRepairs(ctx context.Context) error {
	if !r.repairs.outdated {
		return nil
	}
	stored, _, err := r.RepairStore.Repairs(ctx)
	if err != nil {
		return err
	}
	r.repairs.restore(stored)
	return nil
}
