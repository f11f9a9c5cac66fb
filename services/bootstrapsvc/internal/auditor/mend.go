package auditor

import (
	"context"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairtoken"
)

const (
	// requesterAuto is who asks for what is mended alone.
	requesterAuto = "auto"
	// maxAutoSteps bounds what one pass begins alone, so that a repair stays short enough to be read.
	maxAutoSteps = 100
	// patienceMin and patienceMax bound the pause after an attempt to mend alone that came to nothing.
	patienceMin, patienceMax = time.Second, time.Minute
)

// mend carries on the repair that was begun, and begins one of what may be mended alone. Its error is that of a dependency, or
// tells that somebody else was faster; what it leaves is done later.
func (s *session) mend(ctx context.Context, now time.Time) error {
	if err := s.resume(ctx); err != nil || s.running != nil {
		return err
	}
	if !s.AutoRepair || now.Before(s.patient) {
		return nil
	}
	begun, err := s.mendAlone(ctx, now)
	if begun {
		s.attempts = 0
		return err
	}
	if s.book.hasRepairs() {
		s.patient = now.Add(min(patienceMax, patienceMin<<min(s.attempts, 10)))
		s.attempts++
	}
	return err
}

// mendAlone begins a repair of what is safe, and tells whether there was anything to begin.
func (s *session) mendAlone(ctx context.Context, now time.Time) (begun bool, err error) {
	findings := s.book.safe()
	if len(findings) == 0 {
		return false, nil
	}
	steps := fit(allocation.PlanRepair(findings).Safe().Steps, maxAutoSteps)
	if steps, err = s.stillDue(ctx, steps); err != nil || len(steps) == 0 {
		return false, err
	}
	id := repairtoken.ID(now.Format(time.RFC3339Nano) + allocation.Plan{Steps: steps}.Material())
	_, err = s.start(ctx, requesterAuto, id, steps)
	return true, err
}

// fit returns the steps of as many whole findings, in the order of the plan, as are not more than limit steps.
func fit(steps []allocation.Step, limit int) []allocation.Step {
	if len(steps) <= limit {
		return steps
	}
	counts := stepsOf(steps)
	chosen := map[string]bool{}
	left := limit
	for _, step := range steps {
		if !chosen[step.Finding] && counts[step.Finding] <= left {
			chosen[step.Finding] = true
			left -= counts[step.Finding]
		}
	}
	return only(steps, chosen)
}

// stepsOf counts the steps of each finding.
func stepsOf(steps []allocation.Step) map[string]int {
	counts := map[string]int{}
	for _, step := range steps {
		counts[step.Finding]++
	}
	return counts
}

func only(steps []allocation.Step, findings map[string]bool) []allocation.Step {
	return slices.DeleteFunc(slices.Clone(steps), func(step allocation.Step) bool { return !findings[step.Finding] })
}

// stillDue returns the steps of those findings whose first step could be made now: a repair of what kube-apiserver has
// mended meanwhile is not worth a record.
func (s *session) stillDue(ctx context.Context, steps []allocation.Step) ([]allocation.Step, error) {
	counts, due := stepsOf(steps), map[string]bool{}
	var firsts []allocation.Step
	for _, step := range steps {
		if _, seen := due[step.Finding]; !seen {
			due[step.Finding] = false
			firsts = append(firsts, step)
		}
	}
	for len(firsts) > 0 {
		batch := firsts[:batchOf(firsts)]
		seen, err := s.look(ctx, batch)
		if err != nil {
			return nil, err
		}
		for _, step := range batch {
			outcome, _ := allocation.Check(step, seen.live(step))
			due[step.Finding] = outcome == allocation.Go || outcome == allocation.Unneeded && counts[step.Finding] > 1
		}
		firsts = firsts[len(batch):]
	}
	return only(steps, due), nil
}
