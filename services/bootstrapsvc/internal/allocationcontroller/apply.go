package allocationcontroller

import (
	"context"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// applying is a repair that was begun, continued or found.
type applying struct {
	repair repairstore.Repair
	// result has the repair once it has ended or every step was tried, nil if it has ended.
	result <-chan repairResult
	// isOther reports that the repair is of another plan, and must end before the plan is applied.
	isOther bool
}

// apply continues or begins the repair of a plan; see Controller.Apply. The repair has the ID of
// its plan.
func (r *reconciler) apply(ctx context.Context, request ApplyRequest) (applying, error) {
	if err := r.watches.listErr(); err != nil {
		return applying{}, err
	}
	now := time.Now()
	r.repairWrites = journal{} // a person does not wait for the backoff
	if err := r.reloadRepairs(ctx, now); err != nil {
		return applying{}, err
	}
	begun, exists, err := r.RepairStore.Repair(ctx, request.Plan)
	switch {
	case err != nil:
		return applying{}, err
	case exists:
		return r.applyAgain(request, begun)
	}
	plan, err := r.planToApply(ctx, request)
	if err != nil {
		return applying{}, err
	}
	r.compare(now)
	if other := r.repairs.overlapping(plan.Findings()); other != nil {
		if request.ValidateOnly {
			return applying{}, other.runningErr()
		}
		return applying{repair: other.Repair, result: r.hurry(other), isOther: true}, nil
	}
	if err := r.checkDrift(plan); err != nil {
		return applying{}, err
	}
	start := repairstore.Start{ID: plan.ID, Plan: plan.ID, PlanEtag: plan.Etag, Requester: request.Caller, Steps: plan.Steps}
	if request.ValidateOnly {
		return applying{repair: repairstore.Repair{Start: start, Results: make([]repairstore.StepResult, len(start.Steps))}}, nil
	}
	started, err := r.begin(ctx, now, start)
	if err != nil {
		return applying{}, err
	}
	r.plans.markApplied(plan.ID)
	return applying{repair: started.Repair, result: r.hurry(started)}, nil
}

// hurry makes the pending findings of a repair ready now, and returns its result.
func (r *reconciler) hurry(repair *unfinishedRepair) <-chan repairResult {
	now := time.Now()
	for finding := range repair.pendingFindings() {
		r.queue.add(finding, repair.priorityOf(finding), now, r.repairs.backoff.hasFailed(finding))
		r.queue.hurry(finding, now)
	}
	return repair.wait()
}

// runningErr is the error of a caller that wants to apply a plan while the repair has pending steps
// of the same findings.
func (u *unfinishedRepair) runningErr() error {
	if err := u.retryErr(); err != nil {
		return fmt.Errorf("%w: repairs/%s: %w", ErrRepairRunning, u.ID, err)
	}
	return fmt.Errorf("%w: repairs/%s", ErrRepairRunning, u.ID)
}

// applyAgain returns the repair that was begun with a plan, and continues it if it is unfinished.
func (r *reconciler) applyAgain(request ApplyRequest, begun repairstore.Repair) (applying, error) {
	switch unfinished := r.repairs.find(begun.ID); {
	case begun.Plan != request.Plan:
		return applying{}, fmt.Errorf("%w: repairplans/%s", ErrPlanNotFound, request.Plan)
	case begun.PlanEtag != request.Etag:
		return applying{}, fmt.Errorf("repairplans/%s: %w", request.Plan, ErrEtagMismatch)
	case unfinished == nil, request.ValidateOnly:
		return applying{repair: begun}, nil
	default:
		return applying{repair: unfinished.Repair, result: r.hurry(unfinished)}, nil
	}
}

func (r *reconciler) planToApply(ctx context.Context, request ApplyRequest) (repairstore.Plan, error) {
	plan, exists, err := r.RepairStore.Plan(ctx, request.Plan)
	switch {
	case err != nil:
		return repairstore.Plan{}, err
	case !exists, plan.Repair != "": // its repair is not remembered any more
		return repairstore.Plan{}, fmt.Errorf("%w: repairplans/%s", ErrPlanNotFound, request.Plan)
	case plan.Etag != request.Etag:
		return repairstore.Plan{}, fmt.Errorf("repairplans/%s: %w", request.Plan, ErrEtagMismatch)
	case time.Now().After(plan.Expires):
		return repairstore.Plan{}, fmt.Errorf("%w at %s", ErrPlanExpired, plan.Expires.Format(time.RFC3339))
	default:
		return plan, nil
	}
}

// checkDrift returns an error if the findings of a plan would be repaired by other steps now.
func (r *reconciler) checkDrift(plan repairstore.Plan) error {
	var findings []allocation.Finding
	for _, name := range plan.Findings() {
		finding, ok := r.findings.current[name]
		if !ok {
			return fmt.Errorf("%w: %s is not a current finding any more", ErrPlanDrifted, name)
		}
		if finding.Ignore != nil && finding.Ignore.Created.After(plan.Created) {
			return fmt.Errorf("%w: %s is ignored since the plan was made", ErrPlanDrifted, name)
		}
		findings = append(findings, *finding)
	}
	steps := allocation.PlanRepair(findings).Steps
	for i, step := range steps {
		if i >= len(plan.Steps) || step.Material() != plan.Steps[i].Material() {
			return fmt.Errorf("%w: step %d is now to %s %s %s: %s", ErrPlanDrifted, i+1, step.Verb, step.Store, step.Subject, step.Detail)
		}
	}
	if len(steps) < len(plan.Steps) {
		return fmt.Errorf("%w: it had %d steps and would have %d now", ErrPlanDrifted, len(plan.Steps), len(steps))
	}
	return nil
}

// check returns why a repair cannot be cancelled. A cancelled repair stays cancelled, whichever
// version the caller read.
func (request CancelRequest) check(repair repairstore.Repair, exists bool) error {
	switch {
	case !exists:
		return fmt.Errorf("%w: repairs/%s", ErrRepairNotFound, request.ID)
	case repair.State() == repairstore.Cancelled:
		return nil
	case request.Etag != "" && request.Etag != repair.Etag():
		return fmt.Errorf("repairs/%s: %w", request.ID, ErrEtagMismatch)
	case repair.State() == repairstore.Running && newUnfinishedRepair(repair).countHalfReplaced() > 0:
		return fmt.Errorf("repairs/%s: %w: it deleted an address in use and has not created it again yet", request.ID, ErrRepairNotCancellable)
	case repair.State() != repairstore.Running, !repair.HasStepsLeft():
		return fmt.Errorf("repairs/%s: %w", request.ID, ErrRepairNotCancellable)
	default:
		return nil
	}
}

// cancelRepair ends a repair with steps left; see Controller.Cancel. While workers apply steps of
// it, it returns what is closed once they have ended.
func (r *reconciler) cancelRepair(ctx context.Context, request CancelRequest) (repairstore.Repair, <-chan repairResult, error) {
	now := time.Now()
	r.repairWrites = journal{} // a person does not wait for the backoff
	if err := r.reloadRepairs(ctx, now); err != nil {
		return repairstore.Repair{}, nil, err
	}
	unfinished := r.repairs.find(request.ID)
	if unfinished != nil && unfinished.running > 0 {
		return repairstore.Repair{}, unfinished.waitIdle(), nil
	}
	if unfinished != nil {
		unfinished.progressSaved = time.Time{} // the whole progress is stored before the end
	}
	if err := r.saveRepairs(ctx, now); err != nil {
		return repairstore.Repair{}, nil, err
	}
	repair, exists, err := r.RepairStore.Repair(ctx, request.ID)
	if err != nil {
		return repairstore.Repair{}, nil, err
	}
	if err := request.check(repair, exists); err != nil || repair.State() == repairstore.Cancelled {
		return repair, nil, err
	}
	cancellation := repairstore.Cancellation{Caller: request.Caller, Time: now}
	if err := r.RepairStore.Cancel(ctx, repair.ID, cancellation); err != nil {
		r.repairs.outdated = true // the end may be stored, and only the answer lost
		return repairstore.Repair{}, nil, err
	}
	repair.Cancelled, repair.Ended = &cancellation, cancellation.Time
	r.Logger.InfoContext(ctx, "repair cancelled", "repair", repair.ID, "caller", request.Caller.User)
	r.recordRepair(decisions.RepairCancelled, repair.ID, request.Caller.User+" cancels it")
	if unfinished := r.repairs.find(repair.ID); unfinished != nil {
		unfinished.Repair = repair
		_, err := r.finish(ctx, unfinished)
		return repair, nil, err
	}
	return repair, nil, nil
}
