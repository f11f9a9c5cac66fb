package allocationcontroller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// applyToken continues or begins the repair of a token; see Controller.ApplyRepair.
func (r *reconciler) applyToken(ctx context.Context, token repairstore.Token, id, requester string) (repairstore.Repair, error) {
	if err := r.watches.listErr(); err != nil {
		return repairstore.Repair{}, err
	}
	if err := r.reloadRepairs(ctx); err != nil {
		return repairstore.Repair{}, err
	}
	if unfinished := r.repairs.find(id); unfinished != nil {
		return r.runNow(ctx, unfinished)
	}
	if other := r.repairs.overlapping(token.Findings); other != nil {
		if _, err := r.runNow(ctx, other); err != nil {
			return repairstore.Repair{}, fmt.Errorf("%w: %s: %w", ErrRepairRunning, other.ID, err)
		}
	}
	repairs, _, err := r.Store.Repairs(ctx)
	if err != nil {
		return repairstore.Repair{}, err
	}
	if i := slices.IndexFunc(repairs, func(r repairstore.Repair) bool { return r.ID == id }); i >= 0 {
		return repairs[i], nil
	}
	now := time.Now()
	if now.After(token.Expires) {
		return repairstore.Repair{}, fmt.Errorf("%w at %s", ErrPlanExpired, token.Expires.Format(time.RFC3339))
	}
	if err := r.compare(ctx, now); err != nil {
		return repairstore.Repair{}, err
	}
	steps, err := r.planAgain(token)
	if err != nil {
		return repairstore.Repair{}, err
	}
	started, err := r.begin(ctx, requester, id, steps)
	if err != nil {
		return repairstore.Repair{}, err
	}
	return r.runNow(ctx, started)
}

// planAgain plans the token's findings again, and fails if the plan differs from the token.
func (r *reconciler) planAgain(token repairstore.Token) ([]allocation.Step, error) {
	var findings []allocation.Finding
	for _, name := range token.Findings {
		finding, ok := r.findings.current[name]
		if !ok {
			return nil, fmt.Errorf("%w: %s is not a current finding any more", ErrPlanDrifted, name)
		}
		findings = append(findings, *finding)
	}
	steps := allocation.PlanRepair(findings).Steps
	for i, sum := range checksums(steps) {
		if i >= len(token.Steps) || sum != token.Steps[i] {
			return nil, fmt.Errorf("%w: step %d is now to %s %s %s: %s", ErrPlanDrifted, i+1, steps[i].Verb, steps[i].Store, steps[i].Subject, steps[i].Detail)
		}
	}
	if len(steps) < len(token.Steps) {
		return nil, fmt.Errorf("%w: it had %d steps and would have %d now", ErrPlanDrifted, len(token.Steps), len(steps))
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("%w: it has no steps", ErrPlanDrifted)
	}
	return steps, nil
}
