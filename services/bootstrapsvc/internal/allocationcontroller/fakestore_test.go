package allocationcontroller

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// fakeStore implements RepairStore.
type fakeStore struct{ *fakeCluster }

func (j fakeStore) Findings(context.Context) ([]allocation.Finding, int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Collect(maps.Values(j.findings)), 0, nil
}

func (j fakeStore) WriteFindings(ctx context.Context, findings []allocation.Finding, deleted []string) error {
	return j.write(ctx, "findings", func() error {
		for _, finding := range findings {
			finding.Steps, finding.Ignore = nil, nil
			j.findings[finding.Name] = finding
		}
		for _, name := range deleted {
			delete(j.findings, name)
		}
		return nil
	})
}

func (j fakeStore) Ignores(context.Context) ([]allocation.Ignore, int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Collect(maps.Values(j.ignores)), 0, nil
}

// storedIgnores returns a copy of what the store has.
func (w *fakeCluster) storedIgnores() map[string]allocation.Ignore {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.ignores)
}

func (j fakeStore) WriteIgnores(ctx context.Context, ignores []allocation.Ignore, deleted []string) error {
	return j.write(ctx, "ignores", func() error {
		for _, ignore := range ignores {
			j.ignores[ignore.Finding] = ignore
		}
		for _, name := range deleted {
			delete(j.ignores, name)
		}
		return nil
	})
}

func (j fakeStore) Plans(context.Context) ([]repairstore.Plan, int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	plans := slices.Collect(maps.Values(j.plans))
	slices.SortFunc(plans, func(a, b repairstore.Plan) int { return b.Created.Compare(a.Created) })
	return plans, 0, nil
}

func (j fakeStore) Plan(_ context.Context, id string) (repairstore.Plan, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	plan, exists := j.plans[id]
	return plan, exists, nil
}

func (j fakeStore) CreatePlan(ctx context.Context, plan repairstore.Plan, deleted []string) error {
	return j.write(ctx, "plan", func() error {
		if j.takenIDs > 0 {
			j.takenIDs--
			return repairstore.ErrExists
		}
		j.plans[plan.ID] = plan
		for _, id := range deleted {
			delete(j.plans, id)
		}
		return nil
	})
}

func (j fakeStore) DeletePlans(ctx context.Context, ids []string) error {
	return j.write(ctx, "forget plans", func() error {
		for _, id := range ids {
			delete(j.plans, id)
		}
		return nil
	})
}

// change changes a stored repair. The parts that a real store writes once are rejected the second
// time.
func (j fakeStore) change(ctx context.Context, write, id string, how func(repair *repairstore.Repair) error) error {
	return j.write(ctx, write, func() error {
		repair := j.stored[id]
		repair.Results = slices.Clone(repair.Results)
		if err := how(&repair); err != nil {
			return err
		}
		j.stored[id] = repair
		for follower := range j.followers {
			follower.OnChange([]repairstore.Repair{repair}, nil)
		}
		return nil
	})
}

func (j fakeStore) Begin(ctx context.Context, start repairstore.Start) error {
	return j.change(ctx, "begin", start.ID, func(repair *repairstore.Repair) error {
		plan, planned := j.plans[start.Plan]
		if repair.ID != "" || plan.Repair != "" {
			return repairstore.ErrExists
		}
		if planned {
			plan.Repair = start.ID
			j.plans[start.Plan] = plan
		}
		*repair = repairstore.Repair{Start: start, Results: make([]repairstore.StepResult, len(start.Steps))}
		return nil
	})
}

func (j fakeStore) Record(ctx context.Context, id string, results map[int]repairstore.StepResult, progress repairstore.Progress) error {
	write := "record"
	if len(results) == 0 {
		write = "progress"
	}
	return j.change(ctx, write, id, func(repair *repairstore.Repair) error {
		for number, result := range results {
			if repair.Results[number].State != repairstore.StepPending {
				return repairstore.ErrExists
			}
			repair.Results[number] = result
		}
		repair.Progress = progress
		return nil
	})
}

func (j fakeStore) Cancel(ctx context.Context, id string, cancellation repairstore.Cancellation) error {
	return j.change(ctx, "cancel", id, func(repair *repairstore.Repair) error {
		if !repair.Ended.IsZero() {
			return repairstore.ErrExists
		}
		repair.Cancelled, repair.Ended = &cancellation, cancellation.Time
		return nil
	})
}

func (j fakeStore) End(ctx context.Context, id string, now time.Time) error {
	return j.change(ctx, "end", id, func(repair *repairstore.Repair) error {
		if !repair.Ended.IsZero() {
			return repairstore.ErrExists
		}
		repair.Ended = now
		return nil
	})
}

func (j fakeStore) DeleteRepairs(ctx context.Context, ids []string) error {
	return j.write(ctx, "forget", func() error {
		for _, id := range ids {
			for follower := range j.followers {
				follower.OnChange(nil, []repairstore.Repair{j.stored[id]})
			}
			delete(j.stored, id)
			delete(j.plans, id)
		}
		return nil
	})
}

func (j fakeStore) Repairs(context.Context) ([]repairstore.Repair, int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.SortedFunc(maps.Values(j.stored), repairstore.CompareRepairs), 0, nil
}

func (j fakeStore) Repair(_ context.Context, id string) (repairstore.Repair, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	repair, exists := j.stored[id]
	return repair, exists, nil
}

func (j fakeStore) WatchRepairs(ctx context.Context, handler repairstore.RepairHandler) {
	j.mu.Lock()
	handler.OnList(slices.Collect(maps.Values(j.stored)))
	j.followers[handler] = struct{}{}
	j.mu.Unlock()
	<-ctx.Done()
	j.mu.Lock()
	delete(j.followers, handler)
	j.mu.Unlock()
}

var admin = allocation.Caller{User: "admin"}

// plan stores a plan of the findings with these names, or of all open ones.
func (r *leadership) plan(t testing.TB, names ...string) repairstore.Plan {
	t.Helper()
	plan, err := r.CreatePlan(r.ctx, names, admin, false)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// apply applies a plan as it was read.
func (r *leadership) apply(plan repairstore.Plan) (repairstore.Repair, error) {
	return r.Apply(r.ctx, ApplyRequest{Plan: plan.ID, Etag: plan.Etag, Caller: admin})
}
