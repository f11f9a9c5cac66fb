package repairstore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// StepState says how a step of a repair stands.
type StepState string

const (
	// StepPending steps are to be done.
	StepPending StepState = ""
	// StepDone steps were made.
	StepDone StepState = "done"
	// StepUnneeded steps had nothing left to do.
	StepUnneeded StepState = "unneeded"
	// StepFailed steps were not made: what they were planned from had changed, or they were refused.
	StepFailed StepState = "failed"
)

// StepResult is what came of a step; the zero Outcome is that of one to be done.
type StepResult struct {
	State StepState
	// Error says why it failed.
	Error string `json:",omitempty"`
	// Time is when the step was made, or found to need nothing.
	Time time.Time `json:",omitzero"`
}

// RepairPlan is a repair as it was begun.
type RepairPlan struct {
	ID        string
	Requester string
	Started   time.Time
	Steps     []allocation.Step
}

// Repair is a repair with what came of it.
type Repair struct {
	RepairPlan
	// Results has one for each step.
	Results []StepResult
	// Ended is the zero time while steps are to be done.
	Ended time.Time
}

// Complete tells whether every step is done or was not needed.
func (r Repair) Complete() bool {
	return !slices.ContainsFunc(r.Results, func(o StepResult) bool { return o.State != StepDone && o.State != StepUnneeded })
}

const (
	planPart = "plan"
	endPart  = "end"
)

func (j *Store) repairKey(id, part string) string { return j.repairs + id + "/" + part }

// stepPart orders as numbers do.
func stepPart(number int) string { return fmt.Sprintf("%05d", number) }

// Begin writes down a plan. The error wraps ErrExists if one of its id was begun before.
func (j *Store) Begin(ctx context.Context, plan RepairPlan) error {
	w, err := putOnce(j.repairKey(plan.ID, planPart), plan)
	if err != nil {
		return err
	}
	return j.commit(ctx, []write{w})
}

// Record writes down what came of steps, by their number.
func (j *Store) Record(ctx context.Context, id string, outcomes map[int]StepResult) error {
	var writes []write
	for _, number := range slices.Sorted(maps.Keys(outcomes)) {
		w, err := putOnce(j.repairKey(id, stepPart(number)), outcomes[number])
		if err != nil {
			return err
		}
		writes = append(writes, w)
	}
	return j.commit(ctx, writes)
}

// End writes down that nothing of a repair is left to be done.
func (j *Store) End(ctx context.Context, id string, now time.Time) error {
	w, err := putOnce(j.repairKey(id, endPart), now)
	if err != nil {
		return err
	}
	return j.commit(ctx, []write{w})
}

// DeleteRepairs drops repairs.
func (j *Store) DeleteRepairs(ctx context.Context, ids []string) error {
	var writes []write
	for _, id := range ids {
		writes = append(writes, write{op: clientv3.OpDelete(j.repairs+id+"/", clientv3.WithPrefix())})
	}
	return j.commit(ctx, writes)
}

// Repairs returns all that are kept, the newest first, and how many more could not be read.
func (j *Store) Repairs(ctx context.Context) (kept []Repair, unreadable int, err error) {
	parts := map[string]map[string][]byte{}
	err = j.read(ctx, j.repairs, func(name string, value []byte) {
		id, part, _ := strings.Cut(name, "/")
		if parts[id] == nil {
			parts[id] = map[string][]byte{}
		}
		parts[id][part] = value
	})
	if err != nil {
		return nil, 0, err
	}
	for id, of := range parts {
		repair, err := assemble(id, of)
		if err != nil {
			unreadable++
			continue
		}
		kept = append(kept, repair)
	}
	slices.SortFunc(kept, func(a, b Repair) int {
		return cmp.Or(b.Started.Compare(a.Started), cmp.Compare(a.ID, b.ID))
	})
	return kept, unreadable, nil
}

// assemble makes a repair of its parts.
func assemble(id string, parts map[string][]byte) (Repair, error) {
	var repair Repair
	if err := json.Unmarshal(parts[planPart], &repair.RepairPlan); err != nil {
		return Repair{}, fmt.Errorf("plan: %w", err)
	}
	if repair.ID != id {
		return Repair{}, fmt.Errorf("the plan is that of %q", repair.ID)
	}
	repair.Results = make([]StepResult, len(repair.Steps))
	for part, value := range parts {
		switch part {
		case planPart:
		case endPart:
			if err := json.Unmarshal(value, &repair.Ended); err != nil {
				return Repair{}, fmt.Errorf("end: %w", err)
			}
		default:
			number, err := strconv.Atoi(part)
			if err != nil || number < 0 || number >= len(repair.Steps) {
				return Repair{}, fmt.Errorf("there is no step %q", part)
			}
			if err := json.Unmarshal(value, &repair.Results[number]); err != nil {
				return Repair{}, fmt.Errorf("step %s: %w", part, err)
			}
		}
	}
	return repair, nil
}
