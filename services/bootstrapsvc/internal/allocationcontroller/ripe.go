package allocationcontroller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// catchUpTimeout bounds how long the watch of ranges is waited for; it is milliseconds behind as a rule.
const catchUpTimeout = 5 * time.Second

// catchUp takes what was watched until the ledger knows a bitmap as of the revision at which it was read. A bit says nothing
// of its past: one that was cleared and set again in between is that of a Service which no list may have yet.
func (s *session) catchUp(ctx context.Context, store allocation.Store, revision int64) error {
	late := time.NewTimer(catchUpTimeout)
	defer late.Stop()
	for s.ledger.BitmapRevision(store) < revision {
		select {
		case change := <-s.changes:
			change()
		case <-late.C:
			return fmt.Errorf("watch range %s: %w: revision %d has not come yet", RangeName(store), rangestore.ErrUnavailable, revision)
		case <-ctx.Done():
			return fmt.Errorf("watch range %s: %w: %w", RangeName(store), rangestore.ErrUnavailable, context.Cause(ctx))
		}
	}
	return s.judge(ctx, time.Now())
}

// spare takes back the steps that would clear what is not ripe in this term, whoever planned them: what an earlier leader saw
// says nothing of the time in which nobody looked.
func (s *session) spare(steps []allocation.Step, outcomes []repairstore.StepResult) []allocation.Step {
	var going []allocation.Step
	for i, step := range steps {
		if outcomes[i].State != repairstore.StepPending {
			continue
		}
		if stands, ok := s.ledger.Finding(step.Finding); step.Frees() && (!ok || stands.State != allocation.StateOpen) {
			outcomes[i] = repairstore.StepResult{State: repairstore.StepFailed, Time: time.Now(), Error: fmt.Sprintf(
				"nobody has watched %s unused for long enough since; it is planned again once it is ripe", step.Subject)}
			continue
		}
		going = append(going, step)
	}
	return going
}

func anyFrees(steps []allocation.Step) bool { return slices.ContainsFunc(steps, allocation.Step.Frees) }
