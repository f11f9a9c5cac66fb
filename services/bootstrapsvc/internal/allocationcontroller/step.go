package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const (
	// maxBatch bounds the steps that are made from one look: a list of all Services is worth sharing, and grows old.
	maxBatch = 50
	// maxAttempts is how often a step is tried at once when somebody else writes at the same moment, and maxSetAttempts how
	// often the setting of bits is, which needs no list of all Services: kube-apiserver writes them up to hundreds of times
	// per second.
	maxAttempts, maxSetAttempts = 5, 50
	// conflictPause bounds the pause after somebody else wrote a bitmap first; how long it is, is chance.
	conflictPause = 5 * time.Millisecond
)

// batchOf returns how many of the first steps can be made from one look: bits of one range that are all set or all cleared, or
// addresses that are freed.
func batchOf(steps []allocation.Step) int {
	n := 1
	for n < len(steps) && n < maxBatch && belong(steps[0], steps[n]) {
		n++
	}
	return n
}

func belong(a, b allocation.Step) bool {
	if a.Store.IsBitmap() {
		return b.Store == a.Store && b.Range == a.Range && a.Frees() == b.Frees()
	}
	return a.Store == b.Store && a.Frees() && b.Frees()
}

// make makes the steps of one batch and returns what came of each; Pending where nothing did, which only an error explains.
func (s *session) make(ctx context.Context, steps []allocation.Step) ([]repairstore.StepResult, error) {
	if steps[0].Store.IsBitmap() {
		return s.makeBits(ctx, steps)
	}
	return s.makeAddresses(ctx, steps)
}

// makeBits writes the bits of all steps at once.
func (s *session) makeBits(ctx context.Context, steps []allocation.Step) ([]repairstore.StepResult, error) {
	attempts := maxAttempts
	if setBits(steps) {
		attempts = maxSetAttempts
	}
	for attempt := 1; ; attempt++ {
		seen, err := s.look(ctx, steps)
		if err != nil {
			return nil, err
		}
		outcomes, _ := check(steps, seen)
		going := s.spare(steps, outcomes)
		if len(going) == 0 {
			return outcomes, nil
		}
		data, err := seen.bitmap.Write(going)
		if err != nil {
			return settled(outcomes, failed(err)), nil
		}
		name := RangeName(steps[0].Store)
		_, err = s.Ranges.CompareAndSwap(ctx, name, seen.value.ModRevision, seen.value.Range.With(data))
		switch {
		case err == nil:
			return settled(outcomes, done()), nil
		case errors.Is(err, rangestore.ErrConflict) && attempt < attempts:
			time.Sleep(rand.N(conflictPause))
		case errors.Is(err, rangestore.ErrConflict), isPassing(ctx, err):
			return outcomes, err
		default:
			return settled(outcomes, failed(err)), nil
		}
	}
}

// check returns what is to be said of steps before any is made, and those that are to be made.
func check(steps []allocation.Step, seen *sight) (outcomes []repairstore.StepResult, going []allocation.Step) {
	for _, step := range steps {
		outcome := repairstore.StepResult{Time: time.Now()}
		switch verdict, why := allocation.Check(step, seen.live(step)); verdict {
		case allocation.CheckPassed:
			outcome = repairstore.StepResult{}
			going = append(going, step)
		case allocation.CheckUnneeded:
			outcome.State = repairstore.StepUnneeded
		default:
			outcome.State, outcome.Error = repairstore.StepFailed, why
		}
		outcomes = append(outcomes, outcome)
	}
	return outcomes, going
}

// settled gives those that are pending one outcome.
func settled(outcomes []repairstore.StepResult, outcome repairstore.StepResult) []repairstore.StepResult {
	for i := range outcomes {
		if outcomes[i].State == repairstore.StepPending {
			outcomes[i] = outcome
		}
	}
	return outcomes
}

func done() repairstore.StepResult {
	return repairstore.StepResult{State: repairstore.StepDone, Time: time.Now()}
}

func failed(err error) repairstore.StepResult {
	return repairstore.StepResult{State: repairstore.StepFailed, Error: err.Error(), Time: time.Now()}
}

// makeAddresses writes one address after the other.
func (s *session) makeAddresses(ctx context.Context, steps []allocation.Step) ([]repairstore.StepResult, error) {
	seen, err := s.look(ctx, steps)
	if err != nil {
		return nil, err
	}
	outcomes, _ := check(steps, seen)
	for i, step := range steps {
		if outcomes[i].State != repairstore.StepPending {
			continue
		}
		if outcomes[i], err = s.makeAddress(ctx, step); err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

// makeAddress writes one address that was found to be as it was planned from. If somebody else was faster, it looks again.
func (s *session) makeAddress(ctx context.Context, step allocation.Step) (repairstore.StepResult, error) {
	for attempt := 1; ; attempt++ {
		err := s.write(ctx, step)
		switch {
		case err == nil:
			return done(), nil
		case isPassing(ctx, err):
			return repairstore.StepResult{}, err
		case !errors.Is(err, ErrConflict) || attempt == maxAttempts:
			return failed(err), nil
		}
		seen, err := s.look(ctx, []allocation.Step{step})
		if err != nil {
			return repairstore.StepResult{}, err
		}
		if outcomes, going := check([]allocation.Step{step}, seen); len(going) == 0 {
			return outcomes[0], nil
		}
	}
}

func (s *session) write(ctx context.Context, step allocation.Step) error {
	switch step.Verb {
	case allocation.Create:
		return s.Cluster.Create(ctx, step.Object)
	case allocation.Relabel:
		return s.Cluster.Relabel(ctx, step.Object, step.Guard)
	case allocation.Delete:
		return s.Cluster.Delete(ctx, step.Object.Name, step.Guard)
	default:
		return fmt.Errorf("%s is nothing that can be done to an IPAddress", step.Verb)
	}
}

// isPassing tells errors that go by by themselves, or end the term, from those with which a step was refused.
func isPassing(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, ErrUnavailable) || errors.Is(err, rangestore.ErrUnavailable) ||
		errors.Is(err, term.ErrEnded) || errors.Is(err, term.ErrNone)
}
