package allocationcontroller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// apply continues or begins the repair of a plan; see Controller.Apply. The repair has the ID of
// its plan.
func (r *reconciler) apply(ctx context.Context, request ApplyRequest) (repairstore.Repair, error) {
	if err := r.watches.listErr(); err != nil {
		return repairstore.Repair{}, err
	}
	if err := r.reloadRepairs(ctx); err != nil {
		return repairstore.Repair{}, err
	}
	begun, exists, err := r.RepairStore.Repair(ctx, request.Plan)
	switch {
	case err != nil:
		return repairstore.Repair{}, err
	case exists:
		return r.applyAgain(ctx, request, begun)
	}
	plan, err := r.planToApply(ctx, request)
	if err != nil {
		return repairstore.Repair{}, err
	}
	if err := r.awaitOverlapping(ctx, plan, request.ValidateOnly); err != nil {
		return repairstore.Repair{}, err
	}
	if err := r.compare(ctx, time.Now()); err != nil {
		return repairstore.Repair{}, err
	}
	if err := r.checkDrift(plan); err != nil {
		return repairstore.Repair{}, err
	}
	start := repairstore.Start{ID: plan.ID, Plan: plan.ID, PlanEtag: plan.Etag, Requester: request.Caller, Steps: plan.Steps}
	if request.ValidateOnly {
		return repairstore.Repair{Start: start, Results: make([]repairstore.StepResult, len(start.Steps))}, nil
	}
	started, err := r.begin(ctx, start)
	if err != nil {
		return repairstore.Repair{}, err
	}
	return r.runNow(ctx, started)
}

// applyAgain returns the repair that was begun with a plan, and continues it if it is unfinished.
func (r *reconciler) applyAgain(ctx context.Context, request ApplyRequest, begun repairstore.Repair) (repairstore.Repair, error) {
	switch unfinished := r.repairs.find(begun.ID); {
	case begun.Plan != request.Plan:
		return repairstore.Repair{}, fmt.Errorf("%w: repairplans/%s", ErrPlanNotFound, request.Plan)
	case begun.PlanEtag != request.Etag:
		return repairstore.Repair{}, fmt.Errorf("repairplans/%s: %w", request.Plan, ErrEtagMismatch)
	case unfinished == nil, request.ValidateOnly:
		return begun, nil
	default:
		return r.runNow(ctx, unfinished)
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

// awaitOverlapping returns an error while an unfinished repair has pending steps of the same
// findings. Unless only the plan is to be checked, it first tries to finish that repair.
func (r *reconciler) awaitOverlapping(ctx context.Context, plan repairstore.Plan, validateOnly bool) error {
	other := r.repairs.overlapping(plan.Findings())
	if other == nil {
		return nil
	}
	if !validateOnly {
		if _, err := r.runNow(ctx, other); err != nil {
			return fmt.Errorf("%w: repairs/%s: %w", ErrRepairRunning, other.ID, err)
		}
		if !other.Ended.IsZero() {
			return nil
		}
	}
	if err := other.retryErr(); err != nil {
		return fmt.Errorf("%w: repairs/%s: %w", ErrRepairRunning, other.ID, err)
	}
	return fmt.Errorf("%w: repairs/%s", ErrRepairRunning, other.ID)
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
	case repair.State() != repairstore.Running, !repair.HasStepsLeft():
		return fmt.Errorf("repairs/%s: %w", request.ID, ErrRepairNotCancellable)
	default:
		return nil
	}
}

// cancelRepair ends a repair with steps left; see Controller.Cancel.
func (r *reconciler) cancelRepair(ctx context.Context, request CancelRequest) (repairstore.Repair, error) {
	if err := r.reloadRepairs(ctx); err != nil {
		return repairstore.Repair{}, err
	}
	repair, exists, err := r.RepairStore.Repair(ctx, request.ID)
	if err != nil {
		return repairstore.Repair{}, err
	}
	if err := request.check(repair, exists); err != nil || repair.State() == repairstore.Cancelled {
		return repair, err
	}
	cancellation := repairstore.Cancellation{Caller: request.Caller, Time: time.Now()}
	if err := r.RepairStore.Cancel(ctx, repair.ID, cancellation); err != nil {
		r.repairs.outdated = true // the end may be stored, and only the answer lost
		return repairstore.Repair{}, err
	}
	repair.Cancelled, repair.Ended = &cancellation, cancellation.Time
	r.Logger.InfoContext(ctx, "repair cancelled", "repair", repair.ID, "caller", request.Caller.User)
	if unfinished := r.repairs.find(repair.ID); unfinished != nil {
		unfinished.Repair = repair
		return r.finish(ctx, unfinished)
	}
	return repair, nil
}

// finish moves an ended repair to the history, and deletes the oldest repairs.
func (r *reconciler) finish(ctx context.Context, repair *unfinishedRepair) (repairstore.Repair, error) {
	r.repairs.moveToEnded(repair)
	excess := r.repairs.excess()
	if len(excess) == 0 {
		return repair.Repair, nil
	}
	if err := r.RepairStore.DeleteRepairs(ctx, excess); err != nil {
		return repair.Repair, fmt.Errorf("delete old repairs: %w", err)
	}
	r.repairs.ended = slices.Clone(r.repairs.ended[len(excess):])
	r.plans.forget(excess)
	return repair.Repair, nil
}
