package allocationcontroller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// maxAutoSteps bounds the steps of an automatic repair, so that a person can read it.
const maxAutoSteps = 100

// beginAutomatic begins repairs of the findings that a live read has confirmed a moment ago. No
// repair is stored for what kube-apiserver has repaired meanwhile.
func (r *reconciler) beginAutomatic(ctx context.Context, now time.Time) error {
	for len(r.needed) > 0 {
		var findings []allocation.Finding
		for name := range r.needed {
			if current := r.findings.current[name]; current != nil && r.repairsAlone(current) && r.repairs.pendingOf(name) == nil {
				findings = append(findings, *current)
			} else {
				delete(r.needed, name)
			}
		}
		if len(findings) == 0 {
			return nil
		}
		steps := limitSteps(allocation.PlanRepair(findings).Safe().Steps, maxAutoSteps)
		begun, err := r.begin(ctx, now, repairstore.Start{
			ID: repairstore.NewID(), Requester: allocation.Caller{User: allocation.AutomaticUser}, Steps: steps,
		})
		if err != nil {
			return err
		}
		for finding := range begun.pendingFindings() {
			r.repairs.backoff.started(finding, now)
			delete(r.needed, finding)
		}
	}
	return nil
}

// begin stores a repair before its first step, and queues its findings.
func (r *reconciler) begin(ctx context.Context, now time.Time, start repairstore.Start) (*unfinishedRepair, error) {
	start.Started = time.Now()
	err := r.repairWrites.do(ctx, now, func(ctx context.Context) error {
		err := r.RepairStore.Begin(ctx, start)
		if err != nil {
			r.repairs.outdated = true // the repair may be stored, and only the answer lost
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	r.Logger.InfoContext(ctx, "repair started", "repair", start.ID, "requester", start.Requester.User, "steps", len(start.Steps))
	r.recordRepair(decisions.RepairStarted, start.ID, fmt.Sprintf("%s starts it with %d steps", start.Requester.User, len(start.Steps)))
	begun := newUnfinishedRepair(repairstore.Repair{Start: start, Results: make([]repairstore.StepResult, len(start.Steps))})
	r.repairs.add(begun)
	for finding := range begun.pendingFindings() {
		r.queue.add(finding, begun.priorityOf(finding), now, false)
	}
	return begun, nil
}

// saveRepairs stores the results of steps, ends the repairs without pending steps, and answers the
// callers that wait for a repair.
func (r *reconciler) saveRepairs(ctx context.Context, now time.Time) error {
	err := r.repairWrites.do(ctx, now, func(ctx context.Context) error {
		for _, repair := range slices.Clone(r.repairs.unfinished) {
			if err := r.save(ctx, repair); err != nil {
				r.repairs.outdated = true // some of it may be stored, and only the answer lost
				return err
			}
		}
		return nil
	})
	for _, repair := range slices.Clone(r.repairs.unfinished) {
		switch isUnsaved := repair.hasUnsaved() || !repair.HasStepsLeft(); {
		case isUnsaved && err != nil:
			repair.answer(fmt.Errorf("repair %s is not finished, it will be continued: %w", repair.ID, err))
		case !isUnsaved:
			repair.answer(nil)
		}
	}
	return err
}

// save stores the results of the steps of one repair, and its end if no step is pending.
func (r *reconciler) save(ctx context.Context, repair *unfinishedRepair) error {
	repair.skipSteps(r.findings.ignoreOf)
	if now := time.Now(); repair.mustSave(now) {
		results := repair.unsavedResults()
		if err := r.RepairStore.Record(ctx, repair.ID, results, repair.Progress); err != nil {
			return err
		}
		repair.unsaved, repair.isProgressUnsaved, repair.progressSaved = map[int]struct{}{}, false, now
		for number, result := range results {
			r.recorded(ctx, repair, number, result)
		}
	}
	if repair.HasStepsLeft() {
		return nil
	}
	return r.end(ctx, repair)
}

func (r *reconciler) recorded(ctx context.Context, repair *unfinishedRepair, number int, result repairstore.StepResult) {
	step := repair.Steps[number]
	if result.State == repairstore.StepDone {
		r.findings.markRepaired(step.Finding, repair.ID)
	}
	r.Logger.InfoContext(ctx, "repair step", "repair", repair.ID, "verb", step.Verb, "store", step.Store,
		"subject", step.Subject, "reason", step.Reason, "state", result.State, "error", result.Error)
	r.Reporter.StepFinished(step, result)
	r.recordRepairStep(repair.ID, step, result)
}

// end stores the end of a repair without pending steps, and deletes the oldest repairs.
func (r *reconciler) end(ctx context.Context, repair *unfinishedRepair) error {
	ended := time.Now()
	if err := r.RepairStore.End(ctx, repair.ID, ended); err != nil {
		return fmt.Errorf("end of repair %s: %w", repair.ID, err)
	}
	repair.Ended = ended
	r.Logger.InfoContext(ctx, "repair ended", "repair", repair.ID, "complete", repair.Complete())
	r.recordRepair(decisions.RepairEnded, repair.ID, fmt.Sprintf("complete: %t", repair.Complete()))
	_, err := r.finish(ctx, repair)
	return err
}

// finish moves an ended repair to the history, and deletes the oldest repairs.
func (r *reconciler) finish(ctx context.Context, repair *unfinishedRepair) (repairstore.Repair, error) {
	r.repairs.moveToEnded(repair)
	repair.answer(nil)
	excess := r.repairs.excess()
	if len(excess) == 0 {
		return repair.Repair, nil
	}
	if err := r.RepairStore.DeleteRepairs(ctx, excess); err != nil {
		return repair.Repair, fmt.Errorf("delete old repairs: %w", err)
	}
	r.repairs.forget(excess)
	r.plans.forget(excess)
	return repair.Repair, nil
}

// reloadRepairs reads the repairs again if the answer to a write was lost.
func (r *reconciler) reloadRepairs(ctx context.Context, now time.Time) error {
	if !r.repairs.outdated {
		return nil
	}
	return r.repairWrites.do(ctx, now, func(ctx context.Context) error {
		stored, _, err := r.RepairStore.Repairs(ctx)
		if err != nil {
			return err
		}
		r.repairs.restore(stored)
		return nil
	})
}
