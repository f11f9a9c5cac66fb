package allocationcontroller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// start writes a plan down and carries it out. The repair is what came of it, also beside an error.
func (s *session) start(ctx context.Context, requester, id string, steps []allocation.Step) (repairstore.Repair, error) {
	plan := repairstore.RepairPlan{ID: id, Requester: requester, Started: time.Now(), Steps: steps}
	if err := s.Store.Begin(ctx, plan); err != nil {
		s.history.doubt() // the answer may be lost, and the plan written
		return repairstore.Repair{}, err
	}
	s.Logger.InfoContext(ctx, "repair begun", "repair", id, "requester", requester, "steps", len(steps))
	s.running = &repairstore.Repair{RepairPlan: plan, Results: make([]repairstore.StepResult, len(steps))}
	return s.carryOn(ctx)
}

// resume carries on what an earlier call, or an earlier term, has begun and not ended.
func (s *session) resume(ctx context.Context) error {
	if s.history.doubtful {
		repairs, _, err := s.Store.Repairs(ctx)
		if err != nil {
			return err
		}
		s.running = nil
		s.history.recall(repairs)
	}
	if s.running == nil {
		s.running = s.history.nextUnfinished()
	}
	if s.running == nil {
		return nil
	}
	_, err := s.carryOn(ctx)
	return err
}

// carryOn makes the steps of the running repair that are to be done. An error leaves the rest to be done.
func (s *session) carryOn(ctx context.Context) (repairstore.Repair, error) {
	repair := s.running
	s.underway.Store(&repair.ID)
	defer s.underway.Store(nil)
	for {
		from, to := pendingIn(repair)
		if from == to {
			break
		}
		made, err := s.forsaken(repair), error(nil)
		if len(made) == 0 {
			made, err = s.makeSteps(ctx, repair, from, to)
		}
		if recorded := s.record(ctx, repair, made); recorded != nil {
			err = recorded
		}
		if err != nil {
			return copied(repair), fmt.Errorf("repair %s is not finished, it will be carried on: %w", repair.ID, err)
		}
	}
	ended := time.Now()
	if err := s.Store.End(ctx, repair.ID, ended); err != nil {
		s.history.doubt()
		return copied(repair), fmt.Errorf("end of repair %s: %w", repair.ID, err)
	}
	repair.Ended, s.running = ended, nil
	s.Logger.InfoContext(ctx, "repair ended", "repair", repair.ID, "complete", repair.Complete())
	return copied(repair), s.trim(ctx, *repair)
}

func copied(repair *repairstore.Repair) repairstore.Repair {
	of := *repair
	of.Results = slices.Clone(repair.Results)
	return of
}

// pendingIn returns the next steps that are to be done and can be done together; none when all are done.
func pendingIn(repair *repairstore.Repair) (from, to int) {
	isPending := func(outcome repairstore.StepResult) bool { return outcome.State == repairstore.StepPending }
	if from = slices.IndexFunc(repair.Results, isPending); from < 0 {
		return 0, 0
	}
	to = from
	for to < len(repair.Results) && isPending(repair.Results[to]) {
		to++
	}
	return from, from + batchOf(repair.Steps[from:to])
}

// forsaken are the steps that are not to be done any more, because an earlier one of the same finding was not made.
func (s *session) forsaken(repair *repairstore.Repair) map[int]repairstore.StepResult {
	failed, outcomes := map[string]bool{}, map[int]repairstore.StepResult{}
	for i, step := range repair.Steps {
		switch {
		case repair.Results[i].State == repairstore.StepFailed:
			failed[step.Finding] = true
		case repair.Results[i].State == repairstore.StepPending && failed[step.Finding]:
			outcomes[i] = repairstore.StepResult{State: repairstore.StepFailed, Error: "an earlier step of the same finding was not made", Time: time.Now()}
		}
	}
	return outcomes
}

func (s *session) makeSteps(ctx context.Context, repair *repairstore.Repair, from, to int) (map[int]repairstore.StepResult, error) {
	outcomes, err := s.make(ctx, repair.Steps[from:to])
	made := map[int]repairstore.StepResult{}
	for i, outcome := range outcomes {
		if outcome.State != repairstore.StepPending {
			made[from+i] = outcome
		}
	}
	return made, err
}

// record takes what came of steps into the journal and then into the repair.
func (s *session) record(ctx context.Context, repair *repairstore.Repair, made map[int]repairstore.StepResult) error {
	if len(made) == 0 {
		return nil
	}
	if err := s.Store.Record(ctx, repair.ID, made); err != nil {
		s.history.doubt() // the answer may be lost, and some written
		return err
	}
	for i, outcome := range made {
		step := repair.Steps[i]
		repair.Results[i] = outcome
		if outcome.State == repairstore.StepDone {
			s.book.mend(step.Finding, repair.ID)
		}
		s.Logger.InfoContext(ctx, "repair step", "repair", repair.ID, "verb", step.Verb, "store", step.Store,
			"subject", step.Subject, "reason", step.Reason, "state", outcome.State, "error", outcome.Error)
		s.Reporter.StepFinished(step, outcome)
	}
	return nil
}

// maxHistorySteps bounds the steps of all repairs that are remembered, so that a list of them stays one message.
const maxHistorySteps = 5000

// history is what is known of the repairs in the journal without reading it.
type history struct {
	limit int
	// ended are the repairs that are over, the oldest first.
	ended []past
	// unfinished are those that are not, the oldest first.
	unfinished []repairstore.Repair
	// doubtful tells that the journal may have more than is known.
	doubtful bool
}

// past is a repair that is over.
type past struct {
	id    string
	steps int
}

func (h *history) doubt() { h.doubtful = true }

// recall takes all repairs of the journal, the newest first.
func (h *history) recall(repairs []repairstore.Repair) {
	h.ended, h.unfinished, h.doubtful = nil, nil, false
	for _, repair := range slices.Backward(repairs) {
		if repair.Ended.IsZero() {
			h.unfinished = append(h.unfinished, repair)
			continue
		}
		h.ended = append(h.ended, past{id: repair.ID, steps: len(repair.Steps)})
	}
}

func (h *history) nextUnfinished() *repairstore.Repair {
	if len(h.unfinished) == 0 {
		return nil
	}
	next := h.unfinished[0]
	h.unfinished = h.unfinished[1:]
	return &next
}

// excess returns those of the oldest that are too many.
func (h *history) excess() []string {
	steps := 0
	for at, repair := range slices.Backward(h.ended) {
		steps += repair.steps
		if len(h.ended)-at <= h.limit && steps <= maxHistorySteps {
			continue
		}
		var ids []string
		for _, old := range h.ended[:at+1] {
			ids = append(ids, old.id)
		}
		return ids
	}
	return nil
}

// trim remembers a repair that has ended and drops the oldest of those that are too many.
func (s *session) trim(ctx context.Context, repair repairstore.Repair) error {
	s.history.ended = append(s.history.ended, past{id: repair.ID, steps: len(repair.Steps)})
	ids := s.history.excess()
	if len(ids) == 0 {
		return nil
	}
	if err := s.Store.DeleteRepairs(ctx, ids); err != nil {
		return fmt.Errorf("forget old repairs: %w", err)
	}
	s.history.ended = s.history.ended[len(ids):]
	return nil
}
