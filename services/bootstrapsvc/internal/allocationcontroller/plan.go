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
	// maxPlanSteps bounds a plan, so that a person can read it and one transaction can write it down.
	maxPlanSteps = 500
	// maxPlanLeft bounds what a plan says of findings that it leaves: there may be tens of thousands, and they are listed elsewhere.
	maxPlanLeft = 500
	// planLife is how long a plan may be applied.
	planLife = 10 * time.Minute
)

// PlannedRepair is what would be written, and the token with which it can be.
type PlannedRepair struct {
	Steps []allocation.Step
	// Left are the findings that no step mends, ordered by first sight and name, each with why in its UnsafeReason. Of Omitted more it
	// does not tell.
	Left    []Finding
	Omitted int
	// Token is empty without steps.
	Token      string
	ExpireTime time.Time
}

// PlanRepair plans the repair of findings by their names; all that are open if there are none. It writes nothing. The error
// wraps ErrFindingNotFound for a name that does not stand.
func (a *Controller) PlanRepair(names []string, now time.Time) (PlannedRepair, error) {
	view, err := a.Snapshot()
	if err != nil {
		return PlannedRepair{}, err
	}
	chosen, err := choose(view.Current, names)
	if err != nil {
		return PlannedRepair{}, err
	}
	return newPlan(chosen, now)
}

func choose(standing []Finding, names []string) (map[string]Finding, error) {
	byName := map[string]Finding{}
	for _, finding := range standing {
		byName[finding.Name] = finding
	}
	chosen := map[string]Finding{}
	for _, name := range names {
		finding, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("%w: %s", ErrFindingNotFound, name)
		}
		chosen[name] = finding
	}
	if len(names) > 0 {
		return chosen, nil
	}
	for name, finding := range byName {
		if finding.State == allocation.StateOpen {
			chosen[name] = finding
		}
	}
	return chosen, nil
}

func newPlan(chosen map[string]Finding, now time.Time) (PlannedRepair, error) {
	whole := allocation.PlanRepair(ledgers(chosen))
	plan := PlannedRepair{Steps: fit(whole.Steps, maxPlanSteps)}
	for _, left := range whole.Left {
		plan.leave(chosen[left.Name], left.UnsafeReason)
	}
	planned := stepsOf(plan.Steps)
	for name := range stepsOf(whole.Steps) {
		if planned[name] == 0 {
			plan.leave(chosen[name], fmt.Sprintf("a plan holds %d steps; apply this one and plan again", maxPlanSteps))
		}
	}
	slices.SortFunc(plan.Left, bySight)
	if omitted := len(plan.Left) - maxPlanLeft; omitted > 0 {
		plan.Left, plan.Omitted = plan.Left[:maxPlanLeft], omitted
	}
	if len(plan.Steps) == 0 {
		return plan, nil
	}
	plan.ExpireTime = now.Add(planLife).Truncate(time.Second)
	token := repairstore.Token{Steps: sums(plan.Steps), Expires: plan.ExpireTime}
	for _, step := range plan.Steps {
		if !slices.Contains(token.Findings, step.Finding) {
			token.Findings = append(token.Findings, step.Finding)
		}
	}
	var err error
	plan.Token, err = token.Encode()
	return plan, err
}

func (p *PlannedRepair) leave(finding Finding, why string) {
	finding.UnsafeReason = why
	p.Left = append(p.Left, finding)
}

func ledgers(chosen map[string]Finding) []allocation.Finding {
	var findings []allocation.Finding
	for _, finding := range chosen {
		findings = append(findings, finding.Finding.Finding)
	}
	return findings
}

func sums(steps []allocation.Step) []repairstore.Checksum {
	var all []repairstore.Checksum
	for _, step := range steps {
		all = append(all, repairstore.ChecksumOf(step.Material()))
	}
	return all
}

// ApplyRepair carries out the plan of a token for somebody, and returns what came of it. Applied before, it is carried on if it has not
// ended, and returned otherwise. The error wraps repairstore.ErrInvalid, ErrExpired, ErrDrifted or ErrRunning when nothing was
// written; any other means that the same token is to be applied again.
func (a *Controller) ApplyRepair(ctx context.Context, text, requester string) (repairstore.Repair, error) {
	token, err := repairstore.ParseToken(text)
	if err != nil {
		return repairstore.Repair{}, err
	}
	var repair repairstore.Repair
	id := repairstore.TokenID(text)
	err = a.do(ctx, func(ctx context.Context, s *session) error {
		var err error
		repair, err = s.apply(ctx, token, id, requester)
		return err
	}, func() error { return a.refuse(id) })
	if err != nil {
		return repairstore.Repair{}, err
	}
	return repair, nil
}

// refuse tells that another repair is being applied. The same one is worth waiting for.
func (a *Controller) refuse(id string) error {
	if underway := a.underway.Load(); underway != nil && *underway != id {
		return fmt.Errorf("%w: %s", ErrRepairRunning, *underway)
	}
	return nil
}

func (s *session) apply(ctx context.Context, token repairstore.Token, id, requester string) (repairstore.Repair, error) {
	if err := s.whole(); err != nil {
		return repairstore.Repair{}, err
	}
	if err := s.resume(ctx); err != nil {
		if s.running != nil && s.running.ID != id {
			return repairstore.Repair{}, fmt.Errorf("%w: %s: %w", ErrRepairRunning, s.running.ID, err)
		}
		return repairstore.Repair{}, err
	}
	repairs, _, err := s.Store.Repairs(ctx)
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
	if err := s.judge(ctx, now); err != nil {
		return repairstore.Repair{}, err
	}
	steps, err := s.planned(token)
	if err != nil {
		return repairstore.Repair{}, err
	}
	return s.start(ctx, requester, id, steps)
}

// planned plans again and compares.
func (s *session) planned(token repairstore.Token) ([]allocation.Step, error) {
	var findings []allocation.Finding
	for _, name := range token.Findings {
		stands, ok := s.book.standing[name]
		if !ok {
			return nil, fmt.Errorf("%w: %s does not stand any more", ErrPlanDrifted, name)
		}
		findings = append(findings, stands.Finding.Finding)
	}
	steps := allocation.PlanRepair(findings).Steps
	for i, sum := range sums(steps) {
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

// Repairs are those that are remembered, the newest first; any replica may ask.
func (a *Controller) Repairs(ctx context.Context) ([]repairstore.Repair, error) {
	repairs, _, err := a.Store.Repairs(ctx)
	return repairs, err
}
