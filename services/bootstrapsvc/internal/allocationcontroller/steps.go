package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	// catchUpTimeout bounds how long a step waits for the watch of ranges, which is usually
	// milliseconds behind.
	catchUpTimeout = 5 * time.Second
)

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
			settle(results, failedStep(err))
			return nil
		}
		_, err = r.Ranges.CompareAndSwap(ctx, RangeName(steps[0].Store), live.value.ModRevision, live.value.Range.With(data))
		switch {
		case err == nil:
			settle(results, doneStep())
			return nil
		case errors.Is(err, rangestore.ErrConflict) && attempt < attempts:
			time.Sleep(rand.N(maxConflictPause))
		case errors.Is(err, rangestore.ErrConflict), isTransient(ctx, err):
			return err
		default:
			settle(results, failedStep(err))
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
func checkSteps(steps []allocation.Step, live *liveState) []repairstore.StepResult {
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

// settle sets the results of all pending steps.
func settle(results []repairstore.StepResult, result repairstore.StepResult) {
	for i := range results {
		if results[i].State == repairstore.StepPending {
			results[i] = result
		}
	}
}

func doneStep() repairstore.StepResult {
	return repairstore.StepResult{State: repairstore.StepDone, Time: time.Now()}
}

func failedStep(err error) repairstore.StepResult {
	return repairstore.StepResult{State: repairstore.StepFailed, Error: err.Error(), Time: time.Now()}
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

// liveState is what was read for one batch of steps.
type liveState struct {
	bitmap    allocation.Bitmap
	value     rangestore.Value
	addresses map[string]*allocation.IPAddress
	usage     *allocation.Usage
}

// of returns the live state for one step of the batch.
func (l *liveState) of(step allocation.Step) allocation.LiveState {
	return allocation.LiveState{Usage: l.usage, IPAddress: l.addresses[step.Object.Name], Bitmap: l.bitmap}
}

// readLive reads what the steps of one batch depend on: first what they write, then the Services. A
// Service that begins to use the subject after the list has allocated it before, and the guard of
// the write detects that.
//
// For steps that set bits, which takes nothing away, the bitmap is read last: kube-apiserver writes
// it with every Service that has ports, and a read in between would lose the race.
func (r *reconciler) readLive(ctx context.Context, steps []allocation.Step) (*liveState, error) {
	first, last := r.readTargets, r.readUsers
	if setsBits(steps) {
		first, last = last, first
	}
	live := &liveState{}
	if err := first(ctx, steps, live); err != nil {
		return nil, err
	}
	return live, last(ctx, steps, live)
}

// setsBits reports whether the steps of a batch set bits.
func setsBits(steps []allocation.Step) bool { return steps[0].Store.IsBitmap() && !anyFrees(steps) }

func anyFrees(steps []allocation.Step) bool { return slices.ContainsFunc(steps, allocation.Step.Frees) }

// readTargets reads what the steps of one batch write.
func (r *reconciler) readTargets(ctx context.Context, steps []allocation.Step, live *liveState) (err error) {
	store := steps[0].Store
	if !store.IsBitmap() {
		live.addresses = map[string]*allocation.IPAddress{}
		for _, step := range steps {
			if live.addresses[step.Object.Name], err = r.Cluster.IPAddress(ctx, step.Object.Name); err != nil {
				return err
			}
		}
		return nil
	}
	if live.value, err = r.Ranges.Read(ctx, RangeName(store)); err != nil {
		return err
	}
	live.bitmap = r.bitmapOf(store, live.value)
	if anyFrees(steps) {
		return r.catchUp(ctx, store, live.value.ModRevision)
	}
	return nil
}

// catchUp applies watch events until the index has a bitmap at the revision that was read, and
// compares. A bit does not show its history: if it was cleared and set again in between, it belongs
// to a Service that no list may show yet.
func (r *reconciler) catchUp(ctx context.Context, store allocation.Store, revision int64) error {
	timeout := time.NewTimer(catchUpTimeout)
	defer timeout.Stop()
	for r.index.BitmapRevision(store) < revision {
		select {
		case change := <-r.watches.changes:
			change()
		case <-timeout.C:
			return fmt.Errorf("watch range %s: %w: revision %d has not come yet", RangeName(store), rangestore.ErrUnavailable, revision)
		case <-ctx.Done():
			return fmt.Errorf("watch range %s: %w: %w", RangeName(store), rangestore.ErrUnavailable, context.Cause(ctx))
		}
	}
	return r.compare(ctx, time.Now())
}

// readUsers reads all Services if a step frees, otherwise only the Services for which the steps
// allocate.
func (r *reconciler) readUsers(ctx context.Context, steps []allocation.Step, live *liveState) error {
	owners := map[allocation.Key]struct{}{}
	for _, step := range steps {
		if step.Frees() || step.Owner.Name == "" {
			services, err := r.Cluster.Services(ctx)
			live.usage = allocation.CountUsage(services)
			return err
		}
		owners[step.Owner.Key] = struct{}{}
	}
	var services []allocation.Service
	for owner := range owners {
		service, err := r.Cluster.Service(ctx, owner)
		if err != nil {
			return err
		}
		if service != nil {
			services = append(services, *service)
		}
	}
	live.usage = allocation.CountUsage(services)
	return nil
}
