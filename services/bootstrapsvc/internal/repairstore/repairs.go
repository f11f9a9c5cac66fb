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

// StepState is the state of a step of a repair.
type StepState string

const (
	// StepPending steps are not applied yet.
	StepPending StepState = ""
	// StepDone steps were applied.
	StepDone StepState = "done"
	// StepUnneeded steps had nothing left to do.
	StepUnneeded StepState = "unneeded"
	// StepFailed steps were not applied, because their preconditions no longer held or because they
	// were rejected.
	StepFailed StepState = "failed"
)

// StepResult is the result of a step. The zero StepResult belongs to a pending step.
type StepResult struct {
	State StepState
	// Error says why the step failed.
	Error string `json:",omitempty"`
	// Time is when the step was applied or found to be unneeded.
	Time time.Time `json:",omitzero"`
}

// RepairPlan is a repair as it was begun.
type RepairPlan struct {
	ID        string
	Requester string
	Started   time.Time
	Steps     []allocation.Step
}

// Repair is a repair with the results of its steps.
type Repair struct {
	RepairPlan
	// Results has one element for each step.
	Results []StepResult
	// Ended is the zero time while a step is pending.
	Ended time.Time
}

// Complete reports whether every step is done or was unneeded.
func (r Repair) Complete() bool {
	return !slices.ContainsFunc(r.Results, func(result StepResult) bool {
		return result.State != StepDone && result.State != StepUnneeded
	})
}

const (
	planPart = "plan"
	endPart  = "end"
)

func (s *Store) repairKey(id, part string) string { return s.repairs + id + "/" + part }

// stepPart returns the last part of a step's key. Keys of steps are in the order of the steps.
func stepPart(number int) string { return fmt.Sprintf("%05d", number) }

// Begin writes a plan. The error wraps ErrExists if a repair with its ID was begun before.
func (s *Store) Begin(ctx context.Context, plan RepairPlan) error {
	return s.createOne(ctx, s.repairKey(plan.ID, planPart), plan)
}

// Record writes the results of steps by their number.
func (s *Store) Record(ctx context.Context, id string, results map[int]StepResult) error {
	var writes []write
	for _, number := range slices.Sorted(maps.Keys(results)) {
		w, err := create(s.repairKey(id, stepPart(number)), results[number])
		if err != nil {
			return err
		}
		writes = append(writes, w)
	}
	return s.commit(ctx, writes)
}

// End records that no step of a repair is pending.
func (s *Store) End(ctx context.Context, id string, now time.Time) error {
	return s.createOne(ctx, s.repairKey(id, endPart), now)
}

// DeleteRepairs deletes repairs by their IDs.
func (s *Store) DeleteRepairs(ctx context.Context, ids []string) error {
	var writes []write
	for _, id := range ids {
		writes = append(writes, write{op: clientv3.OpDelete(s.repairs+id+"/", clientv3.WithPrefix())})
	}
	return s.commit(ctx, writes)
}

// Repairs returns all stored repairs, the newest first, and the number of unreadable ones.
func (s *Store) Repairs(ctx context.Context) (stored []Repair, unreadable int, err error) {
	parts := map[string]map[string][]byte{}
	err = s.read(ctx, s.repairs, func(name string, value []byte) {
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
		repair, err := decodeRepair(id, of)
		if err != nil {
			unreadable++
			continue
		}
		stored = append(stored, repair)
	}
	slices.SortFunc(stored, func(a, b Repair) int {
		return cmp.Or(b.Started.Compare(a.Started), cmp.Compare(a.ID, b.ID))
	})
	return stored, unreadable, nil
}

func decodeRepair(id string, parts map[string][]byte) (Repair, error) {
	var repair Repair
	if err := json.Unmarshal(parts[planPart], &repair.RepairPlan); err != nil {
		return Repair{}, fmt.Errorf("plan: %w", err)
	}
	if repair.ID != id {
		return Repair{}, fmt.Errorf("the plan has the ID %q", repair.ID)
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
