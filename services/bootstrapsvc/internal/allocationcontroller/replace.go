package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const (
	// createTimeout bounds one attempt to create an address that was deleted to replace it, and
	// createBudget all attempts that follow the delete at once.
	createTimeout, createBudget = 3 * time.Second, 10 * time.Second
	// createPauseMin and createPauseMax bound the pause between these attempts.
	createPauseMin, createPauseMax = 50 * time.Millisecond, time.Second
)

// maxReplacing bounds the addresses that are replaced at the same time. Those whose create fails
// after their delete count, so that a webhook that fails in between frees no further ones.
const maxReplacing = 4

// errReplacing is the error of a replacement that was not begun.
var errReplacing = fmt.Errorf("the replacement waits until fewer than %d other addresses are being replaced", maxReplacing)

// wouldDeleteInUse reports whether the next step of a finding deletes an address that is in use.
func (u *unfinishedRepair) wouldDeleteInUse(finding string) bool {
	numbers := u.pendingStepsOf(finding)
	return len(numbers) > 1 && u.Steps[numbers[0]].Verb == planned.Delete && u.Steps[numbers[0]].Reason == allocation.ReasonReference
}

// mayDeleteInUse reports whether another replacement may be begun.
func (r *reconciler) mayDeleteInUse() bool {
	n := r.replacing
	for _, repair := range r.repairs.unfinished {
		n += repair.countHalfReplaced()
	}
	return n < maxReplacing
}

// replace deletes an IPAddress with the wrong parent and creates it with the right one. The parent
// of an IPAddress is immutable (ValidateIPAddressUpdate in pkg/apis/networking/validation of
// Kubernetes), so in between the address is free although it is in use. All reads therefore precede
// the delete, a dry run says whether kube-apiserver would admit the create, and nothing but the
// create follows the delete. If the create fails, it is tried again at once; afterwards the finding
// is the first in the queue, at this leader and at the next.
func (w *worker) replace(ctx context.Context, remove, create allocation.Step) []outcome {
	outcomes := untriedOutcomes([]allocation.Step{remove, create})
	if w.stop() {
		return outcomes
	}
	for attempt := 1; ; attempt++ {
		live, err := w.readAddress(ctx, remove)
		if err != nil {
			outcomes[0] = pendingOutcome(err)
			return outcomes
		}
		result := checkStep(remove, live)
		if result.State == repairstore.StepUnneeded && live.address == nil {
			return []outcome{finishedOutcome(result), w.completeReplacement(ctx, create)}
		}
		if result.State != repairstore.StepPending {
			outcomes[0] = finishedOutcome(result)
			if result.State == repairstore.StepUnneeded { // the object is as wanted
				outcomes[1] = finishedOutcome(repairstore.StepResult{State: repairstore.StepUnneeded, Time: result.Time})
			}
			return outcomes
		}
		if err := w.Cluster.CanCreate(ctx, create.Object); err != nil {
			outcomes[0] = pendingOutcome(fmt.Errorf("nothing was deleted, because the create would fail: %w", err))
			return outcomes
		}
		err = w.write(ctx, remove, live.address)
		switch {
		case err == nil:
			return []outcome{finishedOutcome(doneStep()), w.createAtOnce(create)}
		case errors.Is(err, guarded.ErrConflict) && attempt < maxAttempts:
			continue
		case !errors.Is(err, guarded.ErrUnavailable):
			outcomes[0] = pendingOutcome(err)
			return outcomes
		}
		// The delete may have happened, and only its answer was lost. Then the create succeeds; if
		// not, the object that still exists rejects it.
		created := w.createAtOnce(create)
		if created.State == repairstore.StepDone || created.State == repairstore.StepUnneeded {
			return []outcome{finishedOutcome(doneStep()), created}
		}
		outcomes[0] = pendingOutcome(err)
		return outcomes
	}
}

// completeReplacement creates the address whose predecessor is gone, unless its user is gone too.
func (w *worker) completeReplacement(ctx context.Context, create allocation.Step) outcome {
	live := &liveState{}
	if err := w.readUsers(ctx, []allocation.Step{create}, live); err != nil {
		return pendingOutcome(err)
	}
	if result := checkStep(create, live); result.State != repairstore.StepPending {
		return finishedOutcome(result)
	}
	return w.createAtOnce(create)
}

// createAtOnce creates an address that was just deleted, and tries again until createBudget is
// over.
func (w *worker) createAtOnce(create allocation.Step) outcome {
	ctx, cancel := context.WithTimeout(w.term, createBudget)
	defer cancel()
	for failures := 1; ; failures++ {
		attempt, cancel := context.WithTimeout(ctx, createTimeout)
		err := w.Cluster.Create(attempt, create.Object)
		cancel()
		switch {
		case err == nil:
			return finishedOutcome(doneStep())
		case errors.Is(err, guarded.ErrConflict):
			return w.checkExisting(ctx, create)
		case errors.Is(err, term.ErrEnded), errors.Is(err, term.ErrNone), ctx.Err() != nil:
			return pendingOutcome(err)
		}
		if !backoff.Sleep(ctx, backoff.Exponential{Min: createPauseMin, Max: createPauseMax}.After(failures)) {
			return pendingOutcome(err)
		}
	}
}

// checkExisting says what a create means whose name is taken.
func (w *worker) checkExisting(ctx context.Context, create allocation.Step) outcome {
	live, err := w.readAddress(ctx, create)
	if err != nil {
		return pendingOutcome(err)
	}
	result := checkStep(create, live)
	if result.State == repairstore.StepPending {
		return pendingOutcome(fmt.Errorf("create ipaddress %s: %w", create.Object.Name, guarded.ErrConflict))
	}
	return finishedOutcome(result)
}
