package allocationcontroller

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// maxConfirm bounds how many findings one pass looks at before it calls them open. The others ripen anew.
const maxConfirm = 100

// compare has the ledger say what differs. What it would call open because two watches are out of step, as on a busy machine,
// ripens anew: before a finding is open, what it was concluded from is read live. What cannot be read is not called open either.
func (s *session) compare(ctx context.Context, now time.Time) ([]allocation.Delta, error) {
	begun := time.Now()
	delta := s.ledger.Compare(now)
	s.took = time.Since(begun)
	doubted, err := s.confirm(ctx, s.opening(delta.Changed))
	if len(doubted) == 0 {
		return []allocation.Delta{delta}, err
	}
	for name := range doubted {
		s.ledger.RestartGracePeriod(name)
	}
	delta.Changed = slices.DeleteFunc(delta.Changed, func(f allocation.Finding) bool { return doubted[f.Name] })
	return []allocation.Delta{delta, s.ledger.Compare(now)}, err
}

// opening are the first steps of what is open now, was not before, and could have been concluded from watches out of step. What
// is not used by anybody has ripened for long, and is read live before it is freed.
func (s *session) opening(changed []allocation.Finding) []allocation.Step {
	var steps []allocation.Step
	for _, finding := range changed {
		stood := s.book.standing[finding.Name]
		isNew := finding.State == allocation.StateOpen && (stood == nil || stood.State != allocation.StateOpen)
		if isNew && len(finding.Steps) > 0 && !finding.Steps[0].Frees() {
			steps = append(steps, finding.Steps[0])
		}
	}
	return steps
}

// confirm returns the findings of those steps that could not be made now. What is to be written is read first, and then the
// Services: who used it all the time, as the ledger saw, and still does, has lost it.
func (s *session) confirm(ctx context.Context, steps []allocation.Step) (doubted map[string]bool, err error) {
	doubted = map[string]bool{}
	for _, step := range steps {
		doubted[step.Finding] = true
	}
	for steps = chosen(steps); len(steps) > 0; {
		batch := steps[:batchOf(steps)]
		seen := newSight()
		if err := s.readTargets(ctx, batch, seen); err != nil {
			return doubted, err
		}
		if err := s.readUsers(ctx, batch, seen); err != nil {
			return doubted, err
		}
		for _, step := range batch {
			if outcome, _ := allocation.Check(step, seen.live(step)); outcome == allocation.CheckPassed {
				delete(doubted, step.Finding)
			}
		}
		steps = steps[len(batch):]
	}
	return doubted, nil
}

// chosen are as many of the steps as one pass looks at, by chance: those that are doubted each time must not hide the others.
func chosen(steps []allocation.Step) []allocation.Step {
	if len(steps) <= maxConfirm {
		return steps
	}
	rand.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	steps = steps[:maxConfirm]
	slices.SortFunc(steps, func(a, b allocation.Step) int { return strings.Compare(a.Finding, b.Finding) })
	return steps
}
