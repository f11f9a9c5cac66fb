package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const (
	// automaticRequester is the requester of automatic repairs.
	automaticRequester = "auto"
	// maxAutoSteps bounds the steps of an automatic repair, so that a person can read it.
	maxAutoSteps = 100
	// maxFailures bounds the batches that fail in one pass. After as many failures, which are
	// typical of an unavailable dependency, repairs pause for failurePause.
	maxFailures, failurePause = 3, time.Second
	// maxHistorySteps bounds the steps of all stored repairs, so that a list of them fits into one
	// message.
	maxHistorySteps = 5000
)

// repair starts automatic repairs and continues unfinished ones, as far as their findings are ready
// in the queue. Its error is about the store or the term. Errors of single findings are in
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
		if err := r.run(ctx, repair, func(finding string) bool { return r.repairs.queue.ready(finding, now) }); err != nil {
			return err
		}
	}
	return nil
}

// startAutomatic begins and runs one repair of the safe findings that are ready and not pending in
// another repair.
func (r *reconciler) startAutomatic(ctx context.Context, now time.Time, pending set) error {
	findings := slices.DeleteFunc(r.findings.repairable(), func(f allocation.Finding) bool {
		return !r.repairs.queue.ready(f.Name, now) || pending.has(f.Name)
	})
	if len(findings) == 0 {
		return nil
	}
	steps := limitSteps(allocation.PlanRepair(findings).Safe().Steps, maxAutoSteps)
	for finding := range countSteps(steps) {
		r.repairs.queue.started(finding, now)
	}
	steps = r.stillNeeded(ctx, steps)
	if len(steps) == 0 {
		return nil
	}
	id := repairstore.TokenID(now.Format(time.RFC3339Nano) + allocation.Plan{Steps: steps}.Material())
	begun, err := r.begin(ctx, automaticRequester, id, steps)
	if err != nil {
		return err
	}
	return r.run(ctx, begun, func(string) bool { return true })
}

// nextRepair returns when the next finding is ready to be repaired, false if none needs a repair.
func (r *reconciler) nextRepair() (time.Time, bool) {
	var next time.Time
	found := false
	add := func(finding string) {
		if at := r.repairs.queue.notBefore[finding]; !found || at.Before(next) {
			next, found = at, true
		}
	}
	for finding := range r.repairs.pendingFindings() {
		add(finding)
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

// begin stores a plan as a new unfinished repair.
func (r *reconciler) begin(ctx context.Context, requester, id string, steps []allocation.Step) (*unfinishedRepair, error) {
	plan := repairstore.RepairPlan{ID: id, Requester: requester, Started: time.Now(), Steps: steps}
	if err := r.Store.Begin(ctx, plan); err != nil {
		r.repairs.outdated = true // the plan may be stored, and only the answer lost
		return nil, err
	}
	r.Logger.InfoContext(ctx, "repair started", "repair", id, "requester", requester, "steps", len(steps))
	begun := newUnfinishedRepair(repairstore.Repair{RepairPlan: plan, Results: make([]repairstore.StepResult, len(steps))})
	r.repairs.unfinished = append(r.repairs.unfinished, begun)
	return begun, nil
}

// runNow runs a repair without waiting for the backoff of its findings, and returns it with its
// results. The error says why steps are pending.
func (r *reconciler) runNow(ctx context.Context, repair *unfinishedRepair) (repairstore.Repair, error) {
	r.repairs.failuresLeft = maxFailures
	err := r.run(ctx, repair, func(string) bool { return true })
	if err == nil {
		err = repair.retryErr()
	}
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
	failed := set{}
	for r.repairs.failuresLeft > 0 {
		if skipped := repair.stepsToSkip(); len(skipped) > 0 {
			if err := r.record(ctx, repair, skipped); err != nil {
				return err
			}
			continue
		}
		batch := repair.nextBatch(func(finding string) bool { return ready(finding) && !failed.has(finding) })
		if len(batch) == 0 {
			break
		}
		steps := make([]allocation.Step, 0, len(batch))
		for _, number := range batch {
			steps = append(steps, repair.Steps[number])
		}
		results, errs := r.applyBatch(ctx, steps)
		finished := map[int]repairstore.StepResult{}
		for i, number := range batch {
			finding := steps[i].Finding
			if results[i].State != repairstore.StepPending {
				finished[number] = results[i]
				delete(repair.retries, finding)
				r.repairs.queue.succeeded(finding)
				continue
			}
			failed[finding] = struct{}{}
			repair.retries[finding] = errs[i]
			r.repairs.queue.failed(finding, time.Now())
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

// record stores the results of steps and updates the repair.
func (r *reconciler) record(ctx context.Context, repair *unfinishedRepair, results map[int]repairstore.StepResult) error {
	if len(results) == 0 {
		return nil
	}
	if err := r.Store.Record(ctx, repair.ID, results); err != nil {
		r.repairs.outdated = true // some results may be stored, and only the answer lost
		return err
	}
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
	if err := r.Store.End(ctx, repair.ID, ended); err != nil {
		r.repairs.outdated = true // the end may be stored, and only the answer lost
		return fmt.Errorf("end of repair %s: %w", repair.ID, err)
	}
	repair.Ended = ended
	r.Logger.InfoContext(ctx, "repair ended", "repair", repair.ID, "complete", repair.Complete())
	r.repairs.moveToEnded(repair)
	excess := r.repairs.excess()
	if len(excess) == 0 {
		return nil
	}
	if err := r.Store.DeleteRepairs(ctx, excess); err != nil {
		return fmt.Errorf("delete old repairs: %w", err)
	}
	r.repairs.ended = r.repairs.ended[len(excess):]
	return nil
}

// reloadRepairs reads the repairs again if the answer to a write was lost.
func (r *reconciler) reloadRepairs(ctx context.Context) error {
	if !r.repairs.outdated {
		return nil
	}
	stored, _, err := r.Store.Repairs(ctx)
	if err != nil {
		return err
	}
	r.repairs.restore(stored)
	return nil
}

// repairs are the stored repairs as far as the controller needs them.
type repairs struct {
	historyLimit int
	queue        *repairQueue
	// unfinished are the repairs with pending steps, the oldest first.
	unfinished []*unfinishedRepair
	// ended are the ended repairs, the oldest first.
	ended []endedRepair
	// outdated reports that the store may have more than is known here.
	outdated bool
	// startErrs has the errors of the findings whose automatic repair could not be started.
	startErrs map[string]error
	// failuresLeft is how many batches may still fail in this pass.
	failuresLeft int
	// pausedUntil is when the next repair may run after a pass with maxFailures failures.
	pausedUntil time.Time
}

type endedRepair struct {
	id    string
	steps int
}

func newRepairs(historyLimit int) *repairs {
	return &repairs{historyLimit: historyLimit, queue: newRepairQueue(), startErrs: map[string]error{}}
}

// restore replaces the known repairs by those of the store, the newest first.
func (rs *repairs) restore(stored []repairstore.Repair) {
	rs.ended, rs.unfinished, rs.outdated = nil, nil, false
	for _, repair := range slices.Backward(stored) {
		if repair.Ended.IsZero() {
			rs.unfinished = append(rs.unfinished, newUnfinishedRepair(repair))
			continue
		}
		rs.ended = append(rs.ended, endedRepair{id: repair.ID, steps: len(repair.Steps)})
	}
}

func (rs *repairs) find(id string) *unfinishedRepair {
	for _, repair := range rs.unfinished {
		if repair.ID == id {
			return repair
		}
	}
	return nil
}

// overlapping returns an unfinished repair with a pending step of one of the findings, nil if there
// is none.
func (rs *repairs) overlapping(findings []string) *unfinishedRepair {
	for _, repair := range rs.unfinished {
		if pending := repair.pendingFindings(); slices.ContainsFunc(findings, pending.has) {
			return repair
		}
	}
	return nil
}

// pendingFindings returns the findings with a pending step in an unfinished repair.
func (rs *repairs) pendingFindings() set {
	pending := set{}
	for _, repair := range rs.unfinished {
		maps.Copy(pending, repair.pendingFindings())
	}
	return pending
}

// prune forgets the backoff and the errors of findings that need no repair any more.
func (rs *repairs) prune(needed func(finding string) bool) {
	rs.queue.prune(needed)
	maps.DeleteFunc(rs.startErrs, func(finding string, _ error) bool { return !needed(finding) })
}

// retryErr returns the errors of all findings that wait for a retry, nil if none does.
func (rs *repairs) retryErr() error {
	errs := []error{joinErrors(rs.startErrs)}
	for _, repair := range rs.unfinished {
		if err := repair.retryErr(); err != nil {
			errs = append(errs, fmt.Errorf("repair %s is not finished, it will be continued: %w", repair.ID, err))
		}
	}
	return errors.Join(errs...)
}

// settled reports whether no repair is unfinished and none could not be started.
func (rs *repairs) settled() bool { return len(rs.unfinished) == 0 && len(rs.startErrs) == 0 }

func (rs *repairs) moveToEnded(repair *unfinishedRepair) {
	rs.unfinished = slices.DeleteFunc(rs.unfinished, func(other *unfinishedRepair) bool { return other == repair })
	rs.ended = append(rs.ended, endedRepair{id: repair.ID, steps: len(repair.Steps)})
}

// excess returns the IDs of the oldest ended repairs beyond the limits of the history.
func (rs *repairs) excess() []string {
	steps := 0
	for at, repair := range slices.Backward(rs.ended) {
		steps += repair.steps
		if len(rs.ended)-at <= rs.historyLimit && steps <= maxHistorySteps {
			continue
		}
		var ids []string
		for _, old := range rs.ended[:at+1] {
			ids = append(ids, old.id)
		}
		return ids
	}
	return nil
}

// unfinishedRepair is a repair with pending steps.
type unfinishedRepair struct {
	repairstore.Repair
	// retries has the errors of the findings whose next step could not be written yet.
	retries map[string]error
}

func newUnfinishedRepair(repair repairstore.Repair) *unfinishedRepair {
	return &unfinishedRepair{Repair: repair, retries: map[string]error{}}
}

// pendingFindings returns the findings with a pending step.
func (u *unfinishedRepair) pendingFindings() set {
	pending := set{}
	for number, result := range u.Results {
		if result.State == repairstore.StepPending {
			pending[u.Steps[number].Finding] = struct{}{}
		}
	}
	return pending
}

// nextStep returns the first pending step, the zero Step if there is none.
func (u *unfinishedRepair) nextStep() allocation.Step {
	for number, result := range u.Results {
		if result.State == repairstore.StepPending {
			return u.Steps[number]
		}
	}
	return allocation.Step{}
}

// nextBatch returns the numbers of the next pending steps of ready findings that share their live
// reads, in the order of the plan.
func (u *unfinishedRepair) nextBatch(ready func(finding string) bool) []int {
	var numbers []int
	var steps []allocation.Step
	for number, result := range u.Results {
		if result.State == repairstore.StepPending && ready(u.Steps[number].Finding) {
			numbers, steps = append(numbers, number), append(steps, u.Steps[number])
		}
	}
	if len(steps) == 0 {
		return nil
	}
	return numbers[:batchLength(steps)]
}

// stepsToSkip returns results for the pending steps of findings with a failed step.
func (u *unfinishedRepair) stepsToSkip() map[int]repairstore.StepResult {
	failed, results := set{}, map[int]repairstore.StepResult{}
	for number, step := range u.Steps {
		switch {
		case u.Results[number].State == repairstore.StepFailed:
			failed[step.Finding] = struct{}{}
		case u.Results[number].State == repairstore.StepPending && failed.has(step.Finding):
			results[number] = failedStep(errors.New("an earlier step of the same finding was not made"))
		}
	}
	return results
}

// retryErr returns the errors of the findings that wait for a retry, nil if none does.
func (u *unfinishedRepair) retryErr() error { return joinErrors(u.retries) }

// joinErrors joins the errors of findings in the order of their names.
func joinErrors(errs map[string]error) error {
	var joined []error
	for _, finding := range slices.Sorted(maps.Keys(errs)) {
		joined = append(joined, errs[finding])
	}
	return errors.Join(joined...)
}
