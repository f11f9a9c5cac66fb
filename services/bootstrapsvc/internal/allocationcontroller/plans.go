package allocationcontroller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const (
	// maxPlanSteps bounds a plan, so that a person can read it and one transaction can store it.
	maxPlanSteps = 500
	// maxSkipped bounds the findings in a plan that it does not repair: there may be tens of
	// thousands, and ListFindings has them all. maxSkippedBytes keeps them small enough for etcd; a
	// finding of many Services is large.
	maxSkipped, maxSkippedBytes = 500, 512 << 10
	// planLifetime is how long a plan may be applied. planRetention is how long it is kept
	// afterwards, so that a caller learns that it has expired.
	planLifetime, planRetention = 10 * time.Minute, 10 * time.Minute
)

func selectFindings(current []allocation.Finding, names []string) ([]allocation.Finding, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(current), func(f allocation.Finding) bool { return !f.IsOpen() }), nil
	}
	byName := map[string]allocation.Finding{}
	for _, finding := range current {
		byName[finding.Name] = finding
	}
	var selected []allocation.Finding
	for _, name := range names {
		finding, ok := byName[name]
		switch {
		case !ok:
			return nil, fmt.Errorf("%w: %s", ErrFindingNotFound, name)
		case finding.State != allocation.StateOpen:
			return nil, fmt.Errorf("%w: %s is not open yet: %s", ErrFindingNotFound, name, finding.UnsafeReason)
		}
		selected = append(selected, finding)
	}
	return selected, nil
}

// newPlan plans the repair of findings. The plan has no ID.
func newPlan(selected []allocation.Finding, caller allocation.Caller, now time.Time) repairstore.Plan {
	now = now.UTC()
	whole := allocation.PlanRepair(selected)
	plan := repairstore.Plan{
		Requester: caller, Created: now, Expires: now.Add(planLifetime), Steps: limitSteps(whole.Steps, maxPlanSteps),
	}
	plan.Etag = etagOf(plan.Steps)
	skipped := whole.Left
	planned, wanted := countSteps(plan.Steps), countSteps(whole.Steps)
	for _, finding := range selected {
		if wanted[finding.Name] > 0 && planned[finding.Name] == 0 {
			wanted[finding.Name] = 0 // a caller may have named it twice
			finding.UnsafeReason = fmt.Sprintf("a plan holds %d steps; apply this one and plan again", maxPlanSteps)
			finding.Safe = false
			skipped = append(skipped, finding)
		}
	}
	slices.SortFunc(skipped, byFirstSeen)
	plan.Skipped, plan.SkippedCount = limitSkipped(skipped), len(skipped)
	return plan
}

// limitSkipped returns the first findings, without what a plan need not show.
func limitSkipped(skipped []allocation.Finding) []allocation.Finding {
	var limited []allocation.Finding
	size := 0
	for _, finding := range skipped[:min(len(skipped), maxSkipped)] {
		finding.Evidence, finding.Steps = nil, nil
		encoded, _ := json.Marshal(finding) // a Finding has no field that cannot be encoded
		if size += len(encoded); size > maxSkippedBytes {
			break
		}
		limited = append(limited, finding)
	}
	return limited
}

// etagOf identifies steps and the versions that bind them.
func etagOf(steps []allocation.Step) string {
	return repairstore.EtagOf(allocation.Plan{Steps: steps}.Material())
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

// plans are the stored plans as far as the controller needs them, the oldest first.
type plans struct {
	list []plan
	// read reports that list has all stored plans.
	read bool
}

type plan struct {
	id      string
	expires time.Time
	weight  int
	// applied reports that a repair was begun with the plan. It is kept as long as the repair.
	applied bool
}

func (ps *plans) restore(stored []repairstore.Plan) {
	ps.list, ps.read = nil, true
	for _, of := range slices.Backward(stored) {
		ps.list = append(ps.list, plan{id: of.ID, expires: of.Expires, weight: of.Weight(), applied: of.Repair != ""})
	}
}

// excess returns the IDs of the oldest plans beyond the limits, for a new plan of this weight.
// Applied plans do not count.
func (ps *plans) excess(limit, weight int) []string {
	list := slices.DeleteFunc(slices.Clone(ps.list), func(of plan) bool { return of.applied })
	first := len(list)
	for first > 0 && len(list)-first+1 < limit && weight+list[first-1].weight <= maxHistorySteps {
		first--
		weight += list[first].weight
	}
	return idsOf(list[:first])
}

func (ps *plans) markApplied(id string) {
	for i := range ps.list {
		ps.list[i].applied = ps.list[i].applied || ps.list[i].id == id
	}
}

// outdated returns the IDs of the plans that are kept no longer.
func (ps *plans) outdated(now time.Time) []string {
	var old []plan
	for _, of := range ps.list {
		if !of.applied && now.After(of.expires.Add(planRetention)) {
			old = append(old, of)
		}
	}
	return idsOf(old)
}

func idsOf(list []plan) []string {
	var ids []string
	for _, of := range list {
		ids = append(ids, of.id)
	}
	return ids
}

func (ps *plans) forget(ids []string) {
	ps.list = slices.DeleteFunc(ps.list, func(of plan) bool { return slices.Contains(ids, of.id) })
}

// storePlan stores a new plan and deletes the oldest plans.
func (r *reconciler) storePlan(ctx context.Context, of repairstore.Plan) error {
	if err := r.readPlans(ctx); err != nil {
		return err
	}
	excess := r.plans.excess(r.RepairHistory, of.Weight())
	if err := r.RepairStore.CreatePlan(ctx, of, excess); err != nil {
		r.plans.read = false // the plan may be stored, and only the answer lost
		return err
	}
	r.plans.forget(excess)
	r.plans.list = append(r.plans.list, plan{id: of.ID, expires: of.Expires, weight: of.Weight()})
	r.Logger.InfoContext(ctx, "repair planned", "plan", of.ID, "requester", of.Requester.User, "steps", len(of.Steps))
	return nil
}

// prunePlans deletes the plans that expired a while ago and were not applied.
func (r *reconciler) prunePlans(ctx context.Context, now time.Time) error {
	return r.findingWrites.do(ctx, now, func(ctx context.Context) error {
		if err := r.readPlans(ctx); err != nil {
			return err
		}
		old := r.plans.outdated(now)
		if len(old) == 0 {
			return nil
		}
		if err := r.RepairStore.DeletePlans(ctx, old); err != nil {
			return fmt.Errorf("delete old plans: %w", err)
		}
		r.plans.forget(old)
		return nil
	})
}

// readPlans reads the stored plans at the start of a term, and again if the answer to a write was
// lost.
func (r *reconciler) readPlans(ctx context.Context) error {
	if r.plans.read {
		return nil
	}
	stored, _, err := r.RepairStore.Plans(ctx)
	if err != nil {
		return err
	}
	r.plans.restore(stored)
	return nil
}
