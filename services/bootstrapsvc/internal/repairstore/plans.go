package repairstore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// planVersion is the version of the stored form of a plan. A plan of another version is unreadable.
const planVersion = 1

// Plan is a stored plan of a repair.
type Plan struct {
	ID        string
	Requester allocation.Caller
	// Etag identifies the steps and the versions that bind them.
	Etag string
	// Created and Expires say when the plan can be applied.
	Created, Expires time.Time
	Steps            []allocation.Step
	// Skipped are findings that no step repairs, without their evidence and steps. SkippedCount is
	// the number of all.
	Skipped      []allocation.Finding
	SkippedCount int
	// Repair is the ID of the repair that was begun with the plan, empty before.
	Repair string `json:"-"`
}

// Findings returns the names of the findings that the plan repairs, in the order of the steps.
func (p Plan) Findings() []string {
	var names []string
	seen := map[string]bool{}
	for _, step := range p.Steps {
		if !seen[step.Finding] {
			seen[step.Finding] = true
			names = append(names, step.Finding)
		}
	}
	return names
}

// Weight is what a plan counts for the limit of all plans.
func (p Plan) Weight() int { return len(p.Steps) + len(p.Skipped) }

// storedPlan is the stored form of a plan.
type storedPlan struct {
	Version int
	Plan
}

const repairPart = "repair"

func (s *Store) planKey(id, part string) string { return s.plans + id + "/" + part }

// CreatePlan writes a new plan, and then deletes the plans with the given IDs. The error wraps
// ErrExists if its ID is that of a plan or of a repair.
func (s *Store) CreatePlan(ctx context.Context, plan Plan, deleted []string) error {
	w, err := create(s.planKey(plan.ID, planPart), storedPlan{Version: planVersion, Plan: plan}, s.repairKey(plan.ID, planPart))
	if err != nil {
		return err
	}
	return s.commit(ctx, append([]write{w}, s.planDeletes(deleted)...))
}

// DeletePlans deletes plans by their IDs. The repairs that were begun with them stay.
func (s *Store) DeletePlans(ctx context.Context, ids []string) error {
	return s.commit(ctx, s.planDeletes(ids))
}

func (s *Store) planDeletes(ids []string) []write {
	var writes []write
	for _, id := range ids {
		writes = append(writes, write{op: clientv3.OpDelete(s.planKey(id, ""), clientv3.WithPrefix())})
	}
	return writes
}

// Plans returns all stored plans, the newest first, and the number of unreadable ones.
func (s *Store) Plans(ctx context.Context) (stored []Plan, unreadable int, err error) {
	stored, unreadable, err = readAll(ctx, s, s.plans, decodePlan)
	slices.SortFunc(stored, func(a, b Plan) int { return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID)) })
	return stored, unreadable, err
}

// Plan returns the plan with an ID, and whether it exists.
func (s *Store) Plan(ctx context.Context, id string) (Plan, bool, error) {
	return readOne(ctx, s, s.plans, id, decodePlan)
}

func decodePlan(id string, parts map[string][]byte) (Plan, error) {
	var stored storedPlan
	if err := json.Unmarshal(parts[planPart], &stored); err != nil {
		return Plan{}, fmt.Errorf("plan: %w", err)
	}
	if stored.ID != id || stored.Version != planVersion {
		return Plan{}, fmt.Errorf("the plan has the ID %q and the version %d", stored.ID, stored.Version)
	}
	if begun, ok := parts[repairPart]; ok {
		if err := json.Unmarshal(begun, &stored.Repair); err != nil {
			return Plan{}, fmt.Errorf("repair: %w", err)
		}
	}
	return stored.Plan, nil
}
