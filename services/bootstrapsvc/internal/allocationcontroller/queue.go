package allocationcontroller

import (
	"context"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const (
	// requesterAuto is who asks for what is mended alone.
	requesterAuto = "auto"
	// maxAutoSteps bounds what one pass begins alone, so that a repair stays short enough to be read.
	maxAutoSteps = 100
	// againMin and againMax bound the pause after an attempt to mend a finding alone; it doubles from one to the other.
	againMin, againMax = time.Second, time.Minute
)

// mend carries on the repair that was begun, and begins one of what may be mended alone. Its error is that of a dependency, or
// tells that somebody else was faster; what it leaves is done later.
func (s *session) mend(ctx context.Context, now time.Time) error {
	if err := s.resume(ctx); err != nil || s.running != nil {
		return err
	}
	if !s.AutoRepair {
		return nil
	}
	return s.mendAlone(ctx, now)
}

// attempt is how often a finding was tried to be mended alone, and when it may be again. A finding that was mended stands until
// the watch has told so; one that cannot be must not be tried all the time, and neither of them may hold up another one.
type attempt struct {
	count int
	again time.Time
}

// mendAlone begins a repair of what is safe and was not tried a moment ago.
func (s *session) mendAlone(ctx context.Context, now time.Time) error {
	var findings []allocation.Finding
	for _, finding := range s.book.safe() {
		if !now.Before(s.attempts[finding.Name].again) {
			findings = append(findings, finding)
		}
	}
	if len(findings) == 0 {
		return nil
	}
	steps := fit(allocation.PlanRepair(findings).Safe().Steps, maxAutoSteps)
	s.tried(steps, now)
	steps, err := s.stillDue(ctx, steps)
	if err != nil || len(steps) == 0 {
		return err
	}
	id := repairstore.TokenID(now.Format(time.RFC3339Nano) + allocation.Plan{Steps: steps}.Material())
	_, err = s.start(ctx, requesterAuto, id, steps)
	return err
}

// tried takes note of an attempt, and forgets those to mend what does not stand any more.
func (s *session) tried(steps []allocation.Step, now time.Time) {
	for name := range s.attempts {
		if _, stands := s.book.standing[name]; !stands {
			delete(s.attempts, name)
		}
	}
	for name := range stepsOf(steps) {
		made := s.attempts[name]
		const doublings = 10 // far beyond againMax, far from overflow
		s.attempts[name] = attempt{count: made.count + 1, again: now.Add(min(againMax, againMin<<min(made.count, doublings)))}
	}
}

// nextAttempt is when something may be tried to be mended alone; false if there is nothing.
func (s *session) nextAttempt() (time.Time, bool) {
	var next time.Time
	found := false
	for _, finding := range s.book.standing {
		if !isSafe(finding.Finding.Finding) {
			continue
		}
		if again := s.attempts[finding.Name].again; !found || again.Before(next) {
			next, found = again, true
		}
	}
	return next, found && s.AutoRepair
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
			due[step.Finding] = outcome == allocation.CheckPassed || outcome == allocation.CheckUnneeded && counts[step.Finding] > 1
		}
		firsts = firsts[len(batch):]
	}
	return only(steps, due), nil
}
