package repairstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
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
	// StepSkipped steps were not tried, because an earlier step of the same finding failed or the
	// finding is ignored.
	StepSkipped StepState = "skipped"
)

// StepResult is the result of a step. The zero StepResult belongs to a pending step.
type StepResult struct {
	State StepState
	// Error says why the step failed or was skipped.
	Error string `json:",omitempty"`
	// Time is when the step was applied or found to be unneeded.
	Time time.Time `json:",omitzero"`
}

// Start is a repair as it was begun.
type Start struct {
	ID string
	// Plan is the ID of the plan that the repair applies, and PlanEtag its etag. Both are empty for
	// an automatic repair.
	Plan, PlanEtag string
	Requester      allocation.Caller
	Started        time.Time
	Steps          []allocation.Step
}

// storedStart is the stored form of a Start. Versions before plans were stored wrote only ID,
// Requester, Started and Steps.
type storedStart struct {
	ID               string
	Plan             string `json:",omitempty"`
	PlanEtag         string `json:",omitempty"`
	Requester        string
	RequesterGroups  []string `json:",omitempty"`
	RequesterGateway string   `json:",omitempty"`
	Started          time.Time
	Steps            []allocation.Step
}

func (s Start) stored() storedStart {
	return storedStart{
		ID: s.ID, Plan: s.Plan, PlanEtag: s.PlanEtag, Started: s.Started, Steps: s.Steps,
		Requester: s.Requester.User, RequesterGroups: s.Requester.Groups, RequesterGateway: s.Requester.Gateway,
	}
}

func (s storedStart) start() Start {
	user := s.Requester
	switch user { // as earlier versions wrote them
	case "auto":
		user = allocation.AutomaticUser
	case "local":
		user = ""
	}
	return Start{
		ID: s.ID, Plan: s.Plan, PlanEtag: s.PlanEtag, Started: s.Started, Steps: s.Steps,
		Requester: allocation.Caller{User: user, Groups: s.RequesterGroups, Gateway: s.RequesterGateway},
	}
}

// Progress says how often a repair was tried.
type Progress struct {
	// Attempts is how often the repair was taken up.
	Attempts int
	// Steps has the steps that were tried, by their number.
	Steps map[int]StepProgress `json:",omitempty"`
}

// StepProgress says how often a step was tried, and why the last attempt did not end it.
type StepProgress struct {
	Attempts int
	Error    string `json:",omitempty"`
}

// Cancellation says which caller cancelled a repair, and when.
type Cancellation struct {
	Caller allocation.Caller
	Time   time.Time
}

// State is the state of a repair.
type State uint8

const (
	// Running repairs have steps left, or their end is not recorded yet.
	Running State = iota + 1
	// Succeeded repairs have ended, and every step is done or was unneeded.
	Succeeded
	// Failed repairs have ended with a step that failed.
	Failed
	// Cancelled repairs were ended by a caller with steps left.
	Cancelled
)

// Repair is a repair with the results of its steps.
type Repair struct {
	Start
	// Results has one element for each step.
	Results  []StepResult
	Progress Progress
	// Cancelled is nil unless a caller cancelled the repair.
	Cancelled *Cancellation
	// Ended is the zero time while the repair is running.
	Ended time.Time
}

// Complete reports whether every step is done or was unneeded.
func (r Repair) Complete() bool {
	return !slices.ContainsFunc(r.Results, func(result StepResult) bool {
		return result.State != StepDone && result.State != StepUnneeded
	})
}

// HasStepsLeft reports whether a step is pending.
func (r Repair) HasStepsLeft() bool {
	return slices.ContainsFunc(r.Results, func(result StepResult) bool { return result.State == StepPending })
}

// State returns the state of the repair.
func (r Repair) State() State {
	switch {
	case r.Cancelled != nil:
		return Cancelled
	case r.Ended.IsZero():
		return Running
	case r.Complete():
		return Succeeded
	default:
		return Failed
	}
}

// Etag identifies the state of the repair. It changes with every change.
func (r Repair) Etag() string {
	encoded, _ := json.Marshal(struct { // no field can fail to encode
		ID        string
		Results   []StepResult
		Progress  Progress
		Cancelled *Cancellation
		Ended     time.Time
	}{r.ID, r.Results, r.Progress, r.Cancelled, r.Ended})
	return EtagOf(string(encoded))
}

// EtagOf returns the etag of something with this content.
func EtagOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:12])
}

const (
	planPart     = "plan"
	progressPart = "progress"
	cancelPart   = "cancel"
	endPart      = "end"
)

func (s *Store) repairKey(id, part string) string { return s.repairs + id + "/" + part }

// stepPart returns the last part of a step's key. Keys of steps are in the order of the steps.
func stepPart(number int) string { return fmt.Sprintf("%05d", number) }

// Begin writes a repair before its first step, and marks its plan as applied. The error wraps
// ErrExists if a repair with its ID was begun before, the ID is that of another plan, or the plan
// was applied.
func (s *Store) Begin(ctx context.Context, start Start) error {
	var others []string
	if start.ID != start.Plan {
		others = []string{s.planKey(start.ID, planPart)}
	}
	begun, err := create(s.repairKey(start.ID, planPart), start.stored(), others...)
	if err != nil {
		return err
	}
	writes := []write{begun}
	if start.Plan != "" {
		applied, err := create(s.planKey(start.Plan, repairPart), start.ID)
		if err != nil {
			return err
		}
		writes = append(writes, applied)
	}
	return s.commit(ctx, writes)
}

// Record writes the results of steps by their number, and the progress of the repair.
func (s *Store) Record(ctx context.Context, id string, results map[int]StepResult, progress Progress) error {
	w, err := put(s.repairKey(id, progressPart), progress)
	if err != nil {
		return err
	}
	writes := []write{w}
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
	w, err := create(s.repairKey(id, endPart), now)
	if err != nil {
		return err
	}
	return s.commit(ctx, []write{w})
}

// Cancel records that a caller ended a repair. The error wraps ErrExists if the repair has ended.
func (s *Store) Cancel(ctx context.Context, id string, cancellation Cancellation) error {
	cancelled, err := create(s.repairKey(id, cancelPart), cancellation)
	if err != nil {
		return err
	}
	ended, err := create(s.repairKey(id, endPart), cancellation.Time)
	if err != nil {
		return err
	}
	return s.commit(ctx, []write{cancelled, ended})
}

// DeleteRepairs deletes repairs by their IDs, with the plans that they apply.
func (s *Store) DeleteRepairs(ctx context.Context, ids []string) error {
	writes := s.planDeletes(ids)
	for _, id := range ids {
		writes = append(writes, write{op: clientv3.OpDelete(s.repairKey(id, ""), clientv3.WithPrefix())})
	}
	return s.commit(ctx, writes)
}

// Repairs returns all stored repairs, the newest first, and the number of unreadable ones.
func (s *Store) Repairs(ctx context.Context) (stored []Repair, unreadable int, err error) {
	stored, unreadable, err = readAll(ctx, s, s.repairs, decodeRepair)
	slices.SortFunc(stored, CompareRepairs)
	return stored, unreadable, err
}

// Repair returns the repair with an ID, and whether it exists.
func (s *Store) Repair(ctx context.Context, id string) (Repair, bool, error) {
	return readOne(ctx, s, s.repairs, id, decodeRepair)
}

// CompareRepairs orders repairs, the newest first.
func CompareRepairs(a, b Repair) int {
	return cmp.Or(b.Started.Compare(a.Started), cmp.Compare(a.ID, b.ID))
}

func decodeRepair(id string, parts map[string][]byte) (Repair, error) {
	var start storedStart
	if err := json.Unmarshal(parts[planPart], &start); err != nil {
		return Repair{}, fmt.Errorf("plan: %w", err)
	}
	if start.ID != id {
		return Repair{}, fmt.Errorf("the plan has the ID %q", start.ID)
	}
	repair := Repair{Start: start.start(), Results: make([]StepResult, len(start.Steps))}
	for part, value := range parts {
		if err := repair.decodePart(part, value); err != nil {
			return Repair{}, fmt.Errorf("%s: %w", part, err)
		}
	}
	return repair, nil
}

// decodePart decodes a part other than the plan. A part with an unknown name is of a newer version.
func (r *Repair) decodePart(part string, value []byte) error {
	switch part {
	case endPart:
		return json.Unmarshal(value, &r.Ended)
	case progressPart:
		return json.Unmarshal(value, &r.Progress)
	case cancelPart:
		return json.Unmarshal(value, &r.Cancelled)
	}
	number, err := strconv.Atoi(part)
	switch {
	case err != nil:
		return nil
	case number < 0 || number >= len(r.Results):
		return fmt.Errorf("there is no such step")
	default:
		return json.Unmarshal(value, &r.Results[number])
	}
}
