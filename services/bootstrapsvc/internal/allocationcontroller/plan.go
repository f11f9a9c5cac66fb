package allocationcontroller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const (
	// maxPlanSteps bounds a plan, so that a person can read it and one transaction can store it.
	maxPlanSteps = 500
	// maxPlanLeft bounds the findings in a plan that it does not repair: there may be tens of
	// thousands, and ListFindings has them all.
	maxPlanLeft = 500
	// planLifetime is how long a plan may be applied.
	planLifetime = 10 * time.Minute
)

// PlannedRepair is the plan of a repair, and the token that applies it.
type PlannedRepair struct {
	Steps []allocation.Step
	// Left are the findings that no step repairs, ordered by FirstSeen and Name. UnsafeReason says
	// why. Omitted is how many more there are.
	Left    []allocation.Finding
	Omitted int
	// Token is empty if there are no steps.
	Token      string
	ExpireTime time.Time
}

func selectFindings(current []allocation.Finding, names []string) ([]allocation.Finding, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(current), func(f allocation.Finding) bool { return f.State != allocation.StateOpen }), nil
	}
	byName := map[string]allocation.Finding{}
	for _, finding := range current {
		byName[finding.Name] = finding
	}
	var selected []allocation.Finding
	for _, name := range names {
		finding, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("%w: %s", ErrFindingNotFound, name)
		}
		selected = append(selected, finding)
	}
	return selected, nil
}

func newPlannedRepair(selected []allocation.Finding, now time.Time) (PlannedRepair, error) {
	whole := allocation.PlanRepair(selected)
	plan := PlannedRepair{Steps: limitSteps(whole.Steps, maxPlanSteps), Left: whole.Left}
	planned, wanted := countSteps(plan.Steps), countSteps(whole.Steps)
	for _, finding := range selected {
		if wanted[finding.Name] > 0 && planned[finding.Name] == 0 {
			wanted[finding.Name] = 0 // a caller may have named it twice
			finding.UnsafeReason = fmt.Sprintf("a plan holds %d steps; apply this one and plan again", maxPlanSteps)
			plan.Left = append(plan.Left, finding)
		}
	}
	slices.SortFunc(plan.Left, byFirstSeen)
	if omitted := len(plan.Left) - maxPlanLeft; omitted > 0 {
		plan.Left, plan.Omitted = plan.Left[:maxPlanLeft], omitted
	}
	if len(plan.Steps) == 0 {
		return plan, nil
	}
	plan.ExpireTime = now.Add(planLifetime).Truncate(time.Second)
	token := repairstore.Token{Steps: checksums(plan.Steps), Expires: plan.ExpireTime}
	for _, step := range plan.Steps {
		if !slices.Contains(token.Findings, step.Finding) {
			token.Findings = append(token.Findings, step.Finding)
		}
	}
	var err error
	plan.Token, err = token.Encode()
	return plan, err
}

// limitSteps returns the steps of as many whole findings, in the order of the plan, as have at most
// limit steps together.
func limitSteps(steps []allocation.Step, limit int) []allocation.Step {
	if len(steps) <= limit {
		return steps
	}
	counts := countSteps(steps)
	chosen := map[string]bool{}
	left := limit
	for _, step := range steps {
		if !chosen[step.Finding] && counts[step.Finding] <= left {
			chosen[step.Finding] = true
			left -= counts[step.Finding]
		}
	}
	return stepsOf(steps, chosen)
}

func countSteps(steps []allocation.Step) map[string]int {
	counts := map[string]int{}
	for _, step := range steps {
		counts[step.Finding]++
	}
	return counts
}

func stepsOf(steps []allocation.Step, findings map[string]bool) []allocation.Step {
	return slices.DeleteFunc(slices.Clone(steps), func(step allocation.Step) bool { return !findings[step.Finding] })
}

func checksums(steps []allocation.Step) []repairstore.Checksum {
	var sums []repairstore.Checksum
	for _, step := range steps {
		sums = append(sums, repairstore.ChecksumOf(step.Material()))
	}
	return sums
}

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
	repairs, _, err := r.RepairStore.Repairs(ctx)
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
