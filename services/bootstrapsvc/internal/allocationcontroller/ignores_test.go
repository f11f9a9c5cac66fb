package allocationcontroller

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// ignored returns the mark of a current finding.
func (r *leadership) ignored(t *testing.T, name string) *allocation.Ignore {
	t.Helper()
	snapshot, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	finding, ok := snapshot.Finding(name)
	if !ok {
		t.Fatalf("there is no %s", name)
	}
	return finding.Ignore
}

func TestIgnore_IsNeitherRepairedNorPlannedNorAProblem(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		ask := IgnoreRequest{Finding: missingAddress, Comment: "known", Caller: admin}
		checked := ask
		checked.ValidateOnly = true
		if finding, err := r.Ignore(r.ctx, checked); err != nil || finding.Ignore == nil || r.ignored(t, missingAddress) != nil {
			t.Errorf("validated: %+v, %v", finding.Ignore, err)
		}
		finding, err := r.Ignore(r.ctx, ask)
		if err != nil || finding.Ignore == nil || finding.Ignore.Caller.User != "admin" || finding.Ignore.Comment != "known" {
			t.Fatalf("ignored: %+v, %v", finding.Ignore, err)
		}
		time.Sleep(time.Minute)
		before := r.ignored(t, missingAddress)
		if again, err := r.Ignore(r.ctx, ask); err != nil || !again.Ignore.Created.Equal(before.Created) {
			t.Errorf("ignored again: %+v, %v, want %+v", again.Ignore, err, before)
		}
		r.end()

		next := w.lead(t, w.autoRepairConfig())
		defer next.end()
		time.Sleep(settleTime)
		if current := next.current(t); len(current) != 1 || next.ignored(t, missingAddress) == nil {
			t.Fatalf("%v are current at the next leader, want the ignored finding only", current)
		}
		if plan := next.plan(t); len(plan.Steps)+plan.SkippedCount != 0 {
			t.Errorf("plan of everything %+v, want nothing", plan)
		}
		if problems := next.Problems(); len(problems) != 0 {
			t.Errorf("problems %v, want none", problems)
		}
		counts := map[string]int64{}
		if next.CountInto(counts); counts["open_findings"] != 0 || counts["ignored_findings"] != 1 {
			t.Errorf("counts %v", counts)
		}
		if repair, err := next.apply(next.plan(t, missingAddress)); err != nil || repair.State() != repairstore.Succeeded {
			t.Errorf("repair of the named finding: %+v, %v", repair, err)
		}
		time.Sleep(settleTime)
		if len(next.current(t)) != 0 || len(w.storedIgnores()) != 0 {
			t.Errorf("%v are current and %v ignored, want the mark to end with its finding", next.current(t), w.storedIgnores())
		}
	})
}

func TestIgnore_EndsWithItsTimeOrOnRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		ttl, none := 7*time.Minute, time.Duration(0)
		finding, err := r.Ignore(r.ctx, IgnoreRequest{Finding: missingAddress, TTL: &ttl})
		if err != nil || finding.Ignore.Expires.Sub(finding.Ignore.Created) != ttl {
			t.Fatalf("ignored: %+v, %v", finding.Ignore, err)
		}
		time.Sleep(ttl - time.Second)
		if r.ignored(t, missingAddress) == nil {
			t.Error("the mark ended before its time")
		}
		time.Sleep(2 * time.Second)
		if r.ignored(t, missingAddress) != nil || len(w.storedIgnores()) != 0 {
			t.Errorf("the mark is still there: %v", w.storedIgnores())
		}
		etag := finding.Etag()
		if _, err := r.Ignore(r.ctx, IgnoreRequest{Finding: missingAddress, Etag: etag}); !errors.Is(err, ErrEtagMismatch) {
			t.Errorf("ignored with an old etag = %v, want %v", err, ErrEtagMismatch)
		}
		if _, err := r.Ignore(r.ctx, IgnoreRequest{Finding: missingAddress}); err != nil {
			t.Fatal(err)
		}
		if finding, err = r.Ignore(r.ctx, IgnoreRequest{Finding: missingAddress, TTL: &none}); err != nil || finding.Ignore != nil || len(w.storedIgnores()) != 0 {
			t.Errorf("the mark was taken away: %+v, %v", finding.Ignore, err)
		}
		if _, err := r.Ignore(r.ctx, IgnoreRequest{Finding: "findings/none"}); !errors.Is(err, ErrFindingNotFound) {
			t.Errorf("ignored a missing finding = %v, want %v", err, ErrFindingNotFound)
		}
	})
}

// The answer to the write is lost. The next pass reads what was stored.
func TestIgnore_LostAnswerIsReadAgain(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		w.onWrite(func(write string, after bool) error {
			if write == "ignores" && after {
				return repairstore.ErrUnavailable
			}
			return nil
		})
		if _, err := r.Ignore(r.ctx, IgnoreRequest{Finding: missingAddress}); !errors.Is(err, repairstore.ErrUnavailable) {
			t.Errorf("ignored = %v, want %v", err, repairstore.ErrUnavailable)
		}
		time.Sleep(period)
		if r.ignored(t, missingAddress) == nil {
			t.Error("the stored mark is not known")
		}
	})
}

func TestIgnore_StopsTheAutomaticRepairOfItsFinding(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		w.onWrite(func(write string, after bool) error {
			if write == "create 10.0.0.1" && !after {
				return errUnavailable
			}
			return nil
		})
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(settleTime)
		if _, err := r.Ignore(r.ctx, IgnoreRequest{Finding: missingAddress, Caller: admin}); err != nil {
			t.Fatal(err)
		}
		w.onWrite(nil)
		time.Sleep(5 * time.Minute)
		for _, repair := range w.repairs(t) {
			at := slices.IndexFunc(repair.Steps, func(step allocation.Step) bool { return step.Finding == missingAddress })
			if repair.Ended.IsZero() || at >= 0 && repair.Results[at].State != repairstore.StepSkipped {
				t.Errorf("repair %+v, want it ended and the step skipped", repair)
			}
		}
		if slices.Contains(w.writesDone(), "create 10.0.0.1") {
			t.Error("an ignored finding was repaired")
		}
	})
}

// A plan does not repair a finding that was ignored after the plan was made. A plan of an ignored
// finding repairs it: its caller wants that.
func TestIgnore_APlanFromBeforeDoesNotRepairItsFinding(t *testing.T) {
	t.Parallel()
	inTerm(t, func(t *testing.T, w *fakeCluster, r *leadership) {
		plan := r.plan(t)
		time.Sleep(time.Second)
		if _, err := r.Ignore(r.ctx, IgnoreRequest{Finding: missingAddress, Caller: admin}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.apply(plan); !errors.Is(err, ErrPlanDrifted) {
			t.Errorf("applied = %v, want %v", err, ErrPlanDrifted)
		}
		if slices.Contains(w.writesDone(), "create 10.0.0.1") {
			t.Error("an ignored finding was repaired")
		}
		time.Sleep(time.Second)
		if repair, err := r.apply(r.plan(t, missingAddress)); err != nil || repair.State() != repairstore.Succeeded {
			t.Errorf("repair of the named finding: %+v, %v", repair, err)
		}
	})
}
