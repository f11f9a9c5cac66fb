package allocationcontroller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// inTerm runs a test in a term over a damaged cluster, without automatic repairs.
func inTerm(t *testing.T, test func(t *testing.T, w *fakeCluster, r *leadership)) {
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		test(t, w, r)
	})
}

const missingAddress = "findings/not-allocated.ip-addresses.10.0.0.1"

func TestCreatePlan_IsStoredUnlessItIsOnlyValidated(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		checked, err := r.CreatePlan(r.ctx, nil, admin, true)
		if err != nil || checked.ID != "" || len(checked.Steps) != 6 {
			t.Errorf("validated: %+v, %v, want six steps and no ID", checked, err)
		}
		if slices.Contains(w.writesDone(), "plan") {
			t.Error("a plan that was only validated was stored")
		}
		plan := r.plan(t)
		if stored, exists, err := (fakeStore{w}).Plan(t.Context(), plan.ID); err != nil || !exists || stored.Etag != checked.Etag {
			t.Errorf("stored: %+v, %t, %v, want the etag %s", stored, exists, err, checked.Etag)
		}
		if plan.Requester.User != "admin" || plan.Expires.Sub(plan.Created) != planLifetime {
			t.Errorf("plan of %+v lasts %s", plan.Requester, plan.Expires.Sub(plan.Created))
		}
		if _, err := r.CreatePlan(r.ctx, []string{"findings/none"}, admin, false); !errors.Is(err, ErrFindingNotFound) {
			t.Errorf("plan for a missing finding = %v, want %v", err, ErrFindingNotFound)
		}
	})
}

func TestCreatePlan_TakesAnotherIDIfOneExists(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		w.mu.Lock()
		w.takenIDs = 2
		w.mu.Unlock()
		plan := r.plan(t)
		if _, exists, err := (fakeStore{w}).Plan(t.Context(), plan.ID); err != nil || !exists {
			t.Errorf("plan %s is not stored: %v", plan.ID, err)
		}
		w.mu.Lock()
		w.takenIDs = 3
		w.mu.Unlock()
		if _, err := r.CreatePlan(r.ctx, nil, admin, false); !errors.Is(err, repairstore.ErrExists) {
			t.Errorf("plan without a free ID = %v, want %v", err, repairstore.ErrExists)
		}
	})
}

func TestCreatePlan_APendingFindingIsNotOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		if _, err := r.CreatePlan(r.ctx, []string{leakedPort}, admin, false); !errors.Is(err, ErrFindingNotFound) || !strings.Contains(err.Error(), "waits") {
			t.Errorf("plan for a pending finding = %v, want %v and why", err, ErrFindingNotFound)
		}
		if plan := r.plan(t); len(plan.Steps) != 0 || plan.SkippedCount != 0 {
			t.Errorf("plan of everything: %+v, want nothing", plan)
		}
	})
}

func TestApply_RejectsExpiredDriftedAndUnknownPlans(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		old := r.plan(t)
		wrong := old
		wrong.Etag = "other"
		if _, err := r.apply(wrong); !errors.Is(err, ErrEtagMismatch) {
			t.Errorf("apply with another etag = %v, want %v", err, ErrEtagMismatch)
		}
		if _, err := r.apply(repairstore.Plan{ID: "none", Etag: "e"}); !errors.Is(err, ErrPlanNotFound) {
			t.Errorf("apply of no plan = %v, want %v", err, ErrPlanNotFound)
		}
		time.Sleep(planLifetime + time.Second)
		if _, err := r.apply(old); !errors.Is(err, ErrPlanExpired) {
			t.Errorf("apply of an old plan = %v, want %v", err, ErrPlanExpired)
		}
		plan := r.plan(t)
		w.addAddress("10.0.0.2", "labels", func(a *allocation.IPAddress) { a.Family = "IPv5" })
		time.Sleep(settleTime)
		if _, err := r.apply(plan); !errors.Is(err, ErrPlanDrifted) {
			t.Errorf("apply of another plan = %v, want %v", err, ErrPlanDrifted)
		}
		w.addAddress("10.0.0.1", "missing")
		time.Sleep(settleTime)
		if _, err := r.apply(plan); !errors.Is(err, ErrPlanDrifted) || !strings.Contains(err.Error(), "10.0.0.1") {
			t.Errorf("apply after 10.0.0.1 was repaired = %v, want %v", err, ErrPlanDrifted)
		}
		if repairs := w.repairs(t); len(repairs) != 0 {
			t.Errorf("repairs %+v, want none begun", repairs)
		}
		time.Sleep(planLifetime + planRetention + period)
		if plans, _, err := (fakeStore{w}).Plans(t.Context()); err != nil || len(plans) != 0 {
			t.Errorf("plans %+v, %v, want them forgotten", plans, err)
		}
		if _, err := r.apply(plan); !errors.Is(err, ErrPlanNotFound) {
			t.Errorf("apply of a forgotten plan = %v, want %v", err, ErrPlanNotFound)
		}
	})
}

func TestApply_APlanIsAppliedOnce(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		plan := r.plan(t)
		checked, err := r.Apply(r.ctx, ApplyRequest{Plan: plan.ID, Etag: plan.Etag, Caller: admin, ValidateOnly: true})
		if err != nil || checked.State() != repairstore.Running || len(checked.Results) != 6 || slices.Contains(w.writesDone(), "begin") {
			t.Errorf("validated: %+v, %v, written %v", checked, err, w.writesDone())
		}
		first, err := r.apply(plan)
		if err != nil || first.State() != repairstore.Succeeded || first.Plan != plan.ID || first.Requester.User != "admin" {
			t.Fatalf("repair %+v, %v", first, err)
		}
		writes := w.writesDone()
		wrong := plan
		wrong.Etag = "other"
		if _, err := r.apply(wrong); !errors.Is(err, ErrEtagMismatch) {
			t.Errorf("applied again with another etag = %v, want %v", err, ErrEtagMismatch)
		}
		time.Sleep(planLifetime + planRetention + period) // the plan is forgotten, its repair is not
		again, err := r.apply(plan)
		if err != nil || again.Etag() != first.Etag() {
			t.Errorf("applied again: %+v, %v, want %+v", again, err, first)
		}
		later := slices.DeleteFunc(w.writesDone()[len(writes):], func(write string) bool { return write == "findings" || write == "forget plans" })
		if len(later) != 0 {
			t.Errorf("the second time wrote %v", later)
		}
	})
}

// A step that cannot be written is counted, and so is each time the repair is taken up.
func TestApply_CountsAttempts(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		w.onWrite(func(write string, after bool) error {
			if write == "create 10.0.0.1" && !after {
				return errUnavailable
			}
			return nil
		})
		plan := r.plan(t, missingAddress)
		if repair, err := r.apply(plan); err != nil || repair.Progress.Attempts != 1 {
			t.Errorf("repair %+v, %v, want one attempt", repair, err)
		}
		time.Sleep(10 * time.Second)
		before := w.repairs(t)[0].Progress
		if before.Attempts < 3 || before.Steps[0].Attempts != before.Attempts || before.Steps[0].Error == "" {
			t.Errorf("progress after ten seconds: %+v", before)
		}
		r.end()
		next := w.lead(t, w.config())
		defer next.end()
		time.Sleep(settleTime)
		w.onWrite(nil)
		repair, err := next.apply(plan)
		if err != nil || repair.State() != repairstore.Succeeded || repair.Progress.Attempts <= before.Attempts || repair.Progress.Steps[0].Error != "" {
			t.Errorf("repair %+v, %v, want it done after more than %d attempts", repair, err, before.Attempts)
		}
	})
}

func TestNewPlan_LimitsTheFindingsThatAreSkipped(t *testing.T) {
	t.Parallel()
	const many = 20_000
	var selected []allocation.Finding
	for i := range many {
		selected = append(selected, allocation.Finding{
			Name: fmt.Sprintf("findings/duplicate-owner.ip-addresses.%05d", i), Code: allocation.DuplicateOwner,
			State: allocation.StateOpen, UnsafeReason: "a person must choose", Evidence: []allocation.Evidence{{Code: allocation.ServiceUse}},
		})
	}
	plan := newPlan(selected, admin, time.Unix(7, 0))
	if len(plan.Steps) != 0 || len(plan.Skipped) != maxSkipped || plan.SkippedCount != many {
		t.Errorf("%d steps, %d findings are skipped of %d, want %d of %d", len(plan.Steps), len(plan.Skipped), plan.SkippedCount, maxSkipped, many)
	}
	if first := plan.Skipped[0]; first.Name != "findings/duplicate-owner.ip-addresses.00000" || first.Evidence != nil {
		t.Errorf("the first is %+v", first)
	}
	for i := range selected {
		selected[i].Owners = make([]allocation.Owner, 1000)
	}
	if plan := newPlan(selected, admin, time.Unix(7, 0)); len(plan.Skipped) == 0 || len(plan.Skipped) > 20 || plan.SkippedCount != many {
		t.Errorf("%d large findings are skipped of %d, want a few of %d", len(plan.Skipped), plan.SkippedCount, many)
	}
}

func TestCreatePlan_KeepsAsManyPlansAsRepairs(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		var ids []string
		for range w.config().RepairHistory + 3 {
			ids = append(ids, r.plan(t, missingAddress).ID)
			time.Sleep(time.Second)
		}
		plans, _, err := (fakeStore{w}).Plans(t.Context())
		if err != nil || len(plans) != w.config().RepairHistory || plans[0].ID != ids[len(ids)-1] {
			t.Errorf("%d plans, %v, want the last %d", len(plans), err, w.config().RepairHistory)
		}
	})
}

func TestPlans_ExcessHasTheOldestBeyondBothLimits(t *testing.T) {
	t.Parallel()
	var known plans
	for i := range 4 {
		known.list = append(known.list, plan{id: fmt.Sprint(i), weight: 1000})
	}
	for name, test := range map[string]struct {
		limit, weight int
		want          []string
	}{
		"below the limits": {limit: 5, weight: 1000},
		"too many":         {limit: 4, weight: 1000, want: []string{"0"}},
		"too heavy":        {limit: 9, weight: 2500, want: []string{"0", "1"}},
		"only the newest":  {limit: 1, weight: 1, want: []string{"0", "1", "2", "3"}},
	} {
		if got := known.excess(test.limit, test.weight); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
