package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const (
	// maxBatch bounds the steps that share one list of all Services: the list is expensive, and
	// becomes outdated.
	maxBatch = 50
	// maxAttempts is how often a step is tried at once after a write conflict. maxSetAttempts
	// applies to steps that set bits, which need no list of all Services: kube-apiserver writes a
	// bitmap up to hundreds of times per second.
	maxAttempts, maxSetAttempts = 5, 50
	// maxConflictPause bounds the random pause after a write conflict.
	maxConflictPause = 5 * time.Millisecond
)

// errCancelling is the error of a step that was not tried, because a caller wants to cancel the
// repair.
var errCancelling = errors.New("the repair is being cancelled")

// batchLength returns how many of the first steps share their live reads: bits of one range that
// are all set or all cleared, or addresses that are freed.
func batchLength(steps []allocation.Step) int {
	n := 1
	for n < len(steps) && n < maxBatch && shareReads(steps[0], steps[n]) {
		n++
	}
	return n
}

func shareReads(a, b allocation.Step) bool {
	if a.Store.IsBitmap() {
		return b.Store == a.Store && b.Range == a.Range && a.Frees() == b.Frees()
	}
	return a.Store == b.Store && a.Frees() && b.Frees()
}

// applyBatch applies the steps of one batch and returns a result and an error for each. A pending
// result has an error, and only such a result has one.
func (r *reconciler) applyBatch(ctx context.Context, steps []allocation.Step) ([]repairstore.StepResult, []error) {
	apply := r.applyAddresses
	if steps[0].Store.IsBitmap() {
		apply = r.applyBits
	}
	results, errs := make([]repairstore.StepResult, len(steps)), make([]error, len(steps))
	if err := apply(ctx, steps, results, errs); err != nil {
		for i := range results {
			if results[i].State == repairstore.StepPending && errs[i] == nil {
				errs[i] = err
			}
		}
	}
	return results, errs
}

// applyBits writes the bits of all steps at once. Its error concerns all pending steps.
func (r *reconciler) applyBits(ctx context.Context, steps []allocation.Step, results []repairstore.StepResult, _ []error) error {
	attempts := maxAttempts
	if setsBits(steps) {
		attempts = maxSetAttempts
	}
	for attempt := 1; ; attempt++ {
		live, err := r.readLive(ctx, steps)
		if err != nil {
			return err
		}
		copy(results, checkSteps(steps, live))
		r.rejectEarlyFrees(steps, results)
		pending := pendingSteps(steps, results)
		if len(pending) == 0 {
			return nil
		}
		data, err := live.bitmap.Write(pending)
		if err != nil {
			finishPending(results, failedStep(err))
			return nil
		}
		_, err = r.Ranges.CompareAndSwap(ctx, RangeName(steps[0].Store), live.value.ModRevision, live.value.Range.With(data))
		switch {
		case err == nil:
			finishPending(results, doneStep())
			return nil
		case errors.Is(err, rangestore.ErrConflict) && attempt < attempts:
			time.Sleep(rand.N(maxConflictPause))
		case errors.Is(err, rangestore.ErrConflict), isTransient(ctx, err):
			return err
		default:
			finishPending(results, failedStep(err))
			return nil
		}
	}
}

// rejectEarlyFrees fails the steps that would clear a bit whose finding is not open in this term,
// even if an earlier leader planned them. What it saw says nothing about the time since.
func (r *reconciler) rejectEarlyFrees(steps []allocation.Step, results []repairstore.StepResult) {
	for i, step := range steps {
		if results[i].State != repairstore.StepPending || !step.Frees() {
			continue
		}
		if finding, ok := r.index.Finding(step.Finding); !ok || finding.State != allocation.StateOpen {
			results[i] = failedStep(fmt.Errorf("%s has not been watched unused for long enough in this term; it is planned again after its grace period",
				step.Subject))
		}
	}
}

// applyAddresses writes the addresses of the steps one by one. Its error concerns all pending
// steps; errs has the errors of single steps.
func (r *reconciler) applyAddresses(ctx context.Context, steps []allocation.Step, results []repairstore.StepResult, errs []error) error {
	live, err := r.readLive(ctx, steps)
	if err != nil {
		return err
	}
	copy(results, checkSteps(steps, live))
	failures := 0
	for i, step := range steps {
		if results[i].State != repairstore.StepPending {
			continue
		}
		if r.stop() {
			return errCancelling
		}
		if results[i], errs[i] = r.applyAddress(ctx, step); errs[i] != nil {
			if failures++; failures == maxFailures || ctx.Err() != nil {
				return errs[i]
			}
		}
	}
	return nil
}

// applyAddress writes one address whose preconditions hold. After a write conflict, it checks them
// again.
func (r *reconciler) applyAddress(ctx context.Context, step allocation.Step) (repairstore.StepResult, error) {
	for attempt := 1; ; attempt++ {
		err := r.write(ctx, step)
		switch {
		case err == nil:
			return doneStep(), nil
		case isTransient(ctx, err):
			return repairstore.StepResult{}, err
		case !errors.Is(err, guarded.ErrConflict) || attempt == maxAttempts:
			return failedStep(err), nil
		}
		live, err := r.readLive(ctx, []allocation.Step{step})
		if err != nil {
			return repairstore.StepResult{}, err
		}
		if result := checkSteps([]allocation.Step{step}, live)[0]; result.State != repairstore.StepPending {
			return result, nil
		}
	}
}

func (r *reconciler) write(ctx context.Context, step allocation.Step) error {
	switch step.Verb {
	case allocation.Create:
		return r.Cluster.Create(ctx, step.Object)
	case allocation.Relabel:
		return r.Cluster.Relabel(ctx, step.Object, step.Guard)
	case allocation.Delete:
		return r.Cluster.Delete(ctx, step.Object.Name, step.Guard)
	default:
		return fmt.Errorf("verb %s does not apply to an IPAddress", step.Verb)
	}
}

// isTransient reports whether a step may succeed later, or the term has ended. Any other error
// means that the step was rejected.
func isTransient(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, guarded.ErrUnavailable) || errors.Is(err, rangestore.ErrUnavailable) ||
		errors.Is(err, term.ErrEnded) || errors.Is(err, term.ErrNone)
}

// checkSteps returns the results of the steps before any is applied. The steps to apply are
// pending.
func checkSteps(steps []allocation.Step, live *liveBatch) []repairstore.StepResult {
	results := make([]repairstore.StepResult, len(steps))
	for i, step := range steps {
		switch result, reason := allocation.Check(step, live.of(step)); result {
		case allocation.CheckPassed:
		case allocation.CheckUnneeded:
			results[i] = repairstore.StepResult{State: repairstore.StepUnneeded, Time: time.Now()}
		default:
			results[i] = failedStep(errors.New(reason))
		}
	}
	return results
}

func pendingSteps(steps []allocation.Step, results []repairstore.StepResult) []allocation.Step {
	var pending []allocation.Step
	for i, step := range steps {
		if results[i].State == repairstore.StepPending {
			pending = append(pending, step)
		}
	}
	return pending
}

// finishPending sets the result of all pending steps.
func finishPending(results []repairstore.StepResult, result repairstore.StepResult) {
	for i := range results {
		if results[i].State == repairstore.StepPending {
			results[i] = result
		}
	}
}

func doneStep() repairstore.StepResult {
	return repairstore.StepResult{State: repairstore.StepDone, Time: time.Now()}
}

func skippedStep(why string) repairstore.StepResult {
	return repairstore.StepResult{State: repairstore.StepSkipped, Error: why, Time: time.Now()}
}

func failedStep(err error) repairstore.StepResult {
	return repairstore.StepResult{State: repairstore.StepFailed, Error: err.Error(), Time: time.Now()}
}
