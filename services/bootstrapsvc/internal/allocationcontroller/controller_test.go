package allocationcontroller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// settleTime is enough for what ripens within a second.
const settleTime = 3 * time.Second

// newDamagedCluster is a world with something wrong in each way that has safe steps and ripens soon: an address that is missing, one with
// wrong labels, one in the wrong name, and two ports that are not allocated.
func newDamagedCluster(t testing.TB) *fakeCluster {
	w := newFakeCluster(t)
	w.service("missing", "10.0.0.1")
	w.service("labels", "10.0.0.2")
	w.address("10.0.0.2", "labels", func(a *allocation.IPAddress) { a.Family = "" })
	w.service("named", "10.0.0.3")
	w.address("10.0.0.3", "missing")
	w.service("ports", "10.0.0.4", 30001, 30002)
	w.address("10.0.0.4", "ports")
	return w
}

func (w *fakeCluster) wantRepaired(t testing.TB) {
	t.Helper()
	cluster := fakeObjects{w}
	for address, parent := range map[string]string{"10.0.0.1": "missing", "10.0.0.2": "labels", "10.0.0.3": "named", "10.0.0.4": "ports"} {
		got, _ := cluster.IPAddress(t.Context(), address)
		if got == nil || got.Parent.Name != parent || got.Family != allocation.FamilyIPv4 {
			t.Errorf("IPAddress %s is %+v, want that of %s", address, got, parent)
		}
	}
	for _, port := range []int{30001, 30002} {
		if !w.hasPort(port) {
			t.Errorf("port %d is not allocated", port)
		}
	}
}

func TestAuditor_MendsAloneWhatIsSafeAndRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		cfg := w.config()
		cfg.AutoRepair = true
		r := w.lead(t, cfg)
		defer r.end()
		time.Sleep(settleTime)
		w.wantRepaired(t)
		if standing := r.current(t); len(standing) != 0 {
			t.Errorf("%v still stand", standing)
		}
		view, err := r.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if len(view.Ended) != 5 {
			t.Errorf("%d findings have ended, want 5", len(view.Ended))
		}
		for _, finding := range view.Ended {
			if finding.End != repairstore.EndRepaired || finding.RepairedBy == "" {
				t.Errorf("%s ended as %q by %q", finding.Name, finding.End, finding.RepairedBy)
			}
		}
		for _, repair := range w.repairs(t) {
			if !repair.Complete() || repair.Ended.IsZero() || repair.Requester != "auto" {
				t.Errorf("repair %+v", repair)
			}
		}
		if opened := r.reporter.openedNames(); len(opened) != 5 {
			t.Errorf("opened %v, want each of five once", opened)
		}
		before := w.writesDone()
		time.Sleep(30 * time.Minute)
		if diff := cmp.Diff(before, w.writesDone()); diff != "" {
			t.Errorf("then wrote (-before +after):\n%s", diff)
		}
	})
}

func (w *fakeCluster) repairs(t testing.TB) []repairstore.Repair {
	t.Helper()
	repairs, _, err := fakeStore{w}.Repairs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return repairs
}

func TestAuditor_SwitchedOffItMendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(30 * time.Minute)
		for _, write := range w.writesDone() {
			if write != "findings" {
				t.Errorf("wrote %s", write)
			}
		}
		if standing := r.current(t); len(standing) != 5 {
			t.Errorf("%v stand, want five", standing)
		}
	})
}

var errCrash = errors.New("the process dies here")

// A plan is applied, and the process dies at one of its writes, before or after it: whatever the write is, the next leader ends
// what was begun, and nobody had an address that is in use in between but for the moment in which a wrong name is replaced.
func TestAuditor_CrashAtEachWriteOfARepairIsEndedByTheNextLeader(t *testing.T) {
	for _, after := range []bool{false, true} {
		for nth := 0; ; nth++ {
			reached := false
			synctest.Test(t, func(t *testing.T) { reached = crashAt(t, nth, after) })
			if !reached {
				if nth < 10 {
					t.Errorf("a repair has only %d writes", nth)
				}
				break
			}
		}
	}
}

// crashAt applies a plan, dies at its nth write, and looks what the next leader makes of it.
func crashAt(t *testing.T, nth int, after bool) (reached bool) {
	w := newDamagedCluster(t)
	first := w.lead(t, w.config())
	time.Sleep(settleTime)
	plan, err := first.PlanRepair(nil, time.Now())
	if err != nil || len(plan.Steps) != 6 {
		t.Fatalf("plan %v, %v", plan, err)
	}
	writes, name := 0, ""
	w.onWrite(func(write string, isAfter bool) error {
		if isAfter != after {
			return nil
		}
		if writes++; writes == nth+1 {
			reached, name = true, write
			first.lose()
			return errCrash
		}
		return nil
	})
	_, err = first.ApplyRepair(first.ctx, plan.Token, "somebody")
	first.end()
	w.onWrite(nil)
	if reached == (err == nil) {
		t.Errorf("apply = %v, though the process died: %t", err, reached)
	}
	next := w.lead(t, w.config())
	defer next.end()
	time.Sleep(settleTime)
	begun := slices.ContainsFunc(w.repairs(t), func(r repairstore.Repair) bool { return r.ID == repairstore.TokenID(plan.Token) })
	if reached && !begun && name != "begin" {
		t.Errorf("died at %s, and the plan was not written down before", name)
	}
	repair, err := next.ApplyRepair(next.ctx, plan.Token, "somebody")
	if err != nil || !repair.Complete() || repair.Ended.IsZero() {
		t.Errorf("died %s (after: %t): repair %+v, %v", name, after, repair, err)
	}
	w.wantRepaired(t)
	time.Sleep(settleTime)
	if standing := next.current(t); len(standing) != 0 {
		t.Errorf("died %s (after: %t): %v still stand", name, after, standing)
	}
	if repairs := w.repairs(t); len(repairs) != 1 {
		t.Errorf("died %s: %d repairs, want the one", name, len(repairs))
	}
	return reached
}

// Whatever a second repairer does at the same moment, nothing is lost and the repair ends.
func TestAuditor_TwoRepairersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		met := map[string]bool{}
		w.onWrite(func(write string, after bool) error {
			if after || met[write] {
				return nil
			}
			met[write] = true
			switch write { // the other one does the same a moment earlier
			case "create 10.0.0.1":
				w.address("10.0.0.1", "missing")
			case "relabel 10.0.0.2":
				w.address("10.0.0.2", "labels")
			case "delete 10.0.0.3":
				w.address("10.0.0.3", "named")
			case "swap servicenodeports":
				w.putBits(30001, 30002, 30007)
			}
			return nil
		})
		cfg := w.config()
		cfg.AutoRepair = true
		r := w.lead(t, cfg)
		defer r.end()
		time.Sleep(settleTime)
		w.wantRepaired(t)
		if !w.hasPort(30007) || !met["create 10.0.0.1"] || !met["relabel 10.0.0.2"] || !met["delete 10.0.0.3"] || !met["swap servicenodeports"] {
			t.Errorf("the other one's port is allocated: %t; met at %v", w.hasPort(30007), met)
		}
		for _, repair := range w.repairs(t) {
			if repair.Ended.IsZero() {
				t.Errorf("repair %+v has not ended", repair)
			}
		}
	})
}

// Ports that nobody uses are freed after 65 seconds and three sightings, and not a moment earlier.
func TestAuditor_ALeakIsFreedWhenItIsRipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.service("user", "10.0.0.1", 30001)
		w.address("10.0.0.1", "user")
		w.putBits(30001, 30005)
		cfg := w.config()
		cfg.AutoRepair = true
		r := w.lead(t, cfg)
		defer r.end()
		time.Sleep(64 * time.Second)
		if !w.hasPort(30005) {
			t.Fatal("freed before its time")
		}
		time.Sleep(30 * time.Second)
		if w.hasPort(30005) || !w.hasPort(30001) {
			t.Errorf("30005 allocated: %t, 30001 allocated: %t, want only the latter", w.hasPort(30005), w.hasPort(30001))
		}
	})
}

func TestAuditor_AGapBeginsTheTimeOfALeakAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		cfg := w.config()
		cfg.AutoRepair = true
		r := w.lead(t, cfg)
		for range 10 {
			time.Sleep(55 * time.Second)
			w.relist(KindServices)
		}
		r.end()
		for range 5 { // a new leader does not count on what an old one saw
			r = w.lead(t, cfg)
			time.Sleep(55 * time.Second)
			r.end()
		}
		if !w.hasPort(30005) {
			t.Error("freed although it was never watched for long enough")
		}
	})
}

// A Service that the watch has not told yet is found by the list that is read right before something is freed.
func TestAuditor_WhatALiveListShowsInUseIsNotFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		cfg := w.config()
		cfg.AutoRepair = true
		r := w.lead(t, cfg)
		defer r.end()
		time.Sleep(30 * time.Second)
		w.mu.Lock()
		w.stale[KindServices] = true
		w.mu.Unlock()
		w.service("late", "None", 30005)
		time.Sleep(10 * time.Minute)
		if !w.hasPort(30005) {
			t.Error("a port in use was freed")
		}
		if repairs := w.repairs(t); len(repairs) != 0 {
			t.Errorf("repairs %+v, want none begun", repairs)
		}
	})
}

// A port that was freed and given out again between the last event of the watch and the write may be that of a Service that
// kube-apiserver is about to write, so no list has it yet.
func TestAuditor_WhatWasGivenOutAnewBehindTheWatchIsNotFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		w.onWrite(func(write string, after bool) error {
			if write == "begin" && after {
				w.putBits()
				w.putBits(30005)
			}
			return nil
		})
		cfg := w.config()
		cfg.AutoRepair = true
		r := w.lead(t, cfg)
		defer r.end()
		time.Sleep(100 * time.Second)
		if len(w.repairs(t)) == 0 || !w.hasPort(30005) {
			t.Errorf("repairs %+v, allocated: %t, want one that did not free it", w.repairs(t), w.hasPort(30005))
		}
	})
}

// The same may have happened while nobody watched: what an earlier leader was sure of is not what this one saw.
func TestAuditor_WhatAnEarlierLeaderWouldHaveFreedHasToRipenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		first := w.lead(t, w.config())
		time.Sleep(100 * time.Second)
		plan, err := first.PlanRepair(nil, time.Now())
		if err != nil || len(plan.Steps) != 1 {
			t.Fatalf("plan %v, %v", plan, err)
		}
		w.onWrite(func(write string, after bool) error {
			if write == "begin" && after {
				first.lose()
				return errCrash
			}
			return nil
		})
		if _, err := first.ApplyRepair(first.ctx, plan.Token, "somebody"); err == nil {
			t.Error("applied by a process that died")
		}
		first.end()
		w.onWrite(nil)
		w.putBits()
		w.putBits(30005)
		next := w.lead(t, w.config())
		defer next.end()
		time.Sleep(settleTime)
		repairs := w.repairs(t)
		if len(repairs) != 1 || repairs[0].Ended.IsZero() || repairs[0].Results[0].State != repairstore.StepFailed || !w.hasPort(30005) {
			t.Errorf("repairs %+v, allocated: %t, want one that has ended and did not free it", repairs, w.hasPort(30005))
		}
	})
}

// Another cluster's range looks full of leaks, and lacks what is in use here.
func TestAuditor_ARangeOfAnotherClusterIsNeitherJudgedNorWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.service("user", "None", 30001)
		w.putBits(30005)
		w.foreign = "it is another cluster's"
		cfg := w.config()
		cfg.AutoRepair = true
		r := w.lead(t, cfg)
		defer r.end()
		time.Sleep(10 * time.Minute)
		if standing := r.current(t); len(standing) != 0 || len(w.writesDone()) != 0 || r.lastError() != nil {
			t.Errorf("%v stand, written %v, %v, want nothing", standing, w.writesDone(), r.lastError())
		}
		view, err := r.Snapshot()
		if err != nil || view.Stores[1].Present || view.Stores[1].Problem != w.foreign {
			t.Errorf("states %+v, %v", view.Stores, err)
		}
		w.mu.Lock()
		w.foreign = ""
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		if !w.hasPort(30001) {
			t.Error("the port in use is not allocated once the range is known to be this cluster's")
		}
		if view, err = r.Snapshot(); err != nil || !view.Stores[1].Present || view.Stores[1].Problem != "" {
			t.Errorf("states %+v, %v", view.Stores, err)
		}
	})
}

func TestAuditor_WithoutAWitnessTheRangesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		witness := allocation.Key{Namespace: "default", Name: "kubernetes"}
		delete(w.services, witness)
		w.service("user", "None", 30001)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(time.Minute)
		if standing := r.current(t); len(standing) != 0 {
			t.Errorf("%v stand before anybody knows whose range it is", standing)
		}
		w.service("kubernetes", "None")
		time.Sleep(10 * time.Second)
		if standing := r.current(t); len(standing) != 1 {
			t.Errorf("%v stand, want port 30001", standing)
		}
	})
}

// Whoever comes second is told so soon, and not when the first one's steps are made. The same token waits.
func TestAuditor_WhileARepairRunsAnotherIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		first, err := r.PlanRepair([]string{"findings/not-allocated.ip-addresses.10.0.0.1"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		second, err := r.PlanRepair(nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		w.onWrite(func(write string, after bool) error {
			if write == "create 10.0.0.1" && !after {
				time.Sleep(20 * time.Second)
			}
			return nil
		})
		outcome := func(token string) chan error {
			told := make(chan error, 1)
			go func() {
				_, err := r.ApplyRepair(r.ctx, token, "somebody")
				told <- err
			}()
			return told
		}
		one := outcome(first.Token)
		time.Sleep(time.Millisecond)
		begun := time.Now()
		again, other := outcome(first.Token), outcome(second.Token)
		if err := <-other; !errors.Is(err, ErrRepairRunning) || time.Since(begun) > 2*time.Second {
			t.Errorf("the other one is told %v after %s, want %v soon", err, time.Since(begun), ErrRepairRunning)
		}
		if errs := []error{<-one, <-again}; errs[0] != nil || errs[1] != nil {
			t.Errorf("the first one and the same again: %v", errs)
		}
		if repairs := w.repairs(t); len(repairs) != 1 {
			t.Errorf("%d repairs, want one", len(repairs))
		}
	})
}

func TestAuditor_APlanIsRefusedWhenItIsOldOrAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		old, err := r.PlanRepair(nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(planLife + time.Second)
		if _, err := r.ApplyRepair(r.ctx, old.Token, "somebody"); !errors.Is(err, ErrPlanExpired) {
			t.Errorf("apply of an old plan = %v, want %v", err, ErrPlanExpired)
		}
		plan, err := r.PlanRepair(nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		w.address("10.0.0.2", "labels", func(a *allocation.IPAddress) { a.Family = "IPv5" })
		time.Sleep(settleTime)
		if _, err := r.ApplyRepair(r.ctx, plan.Token, "somebody"); !errors.Is(err, ErrPlanDrifted) {
			t.Errorf("apply of another plan = %v, want %v", err, ErrPlanDrifted)
		}
		w.address("10.0.0.1", "missing")
		time.Sleep(settleTime)
		if _, err := r.ApplyRepair(r.ctx, plan.Token, "somebody"); !errors.Is(err, ErrPlanDrifted) || !strings.Contains(err.Error(), "10.0.0.1") {
			t.Errorf("apply to what was mended = %v, want %v for 10.0.0.1", err, ErrPlanDrifted)
		}
		if repairs := w.repairs(t); len(repairs) != 0 {
			t.Errorf("repairs %+v, want none begun", repairs)
		}
	})
}

func TestAuditor_FirstSightSurvivesATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		r := w.lead(t, w.config())
		time.Sleep(settleTime)
		before := map[string]time.Time{}
		view, err := r.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		for _, finding := range view.Current {
			before[finding.Name] = finding.FirstSeen
		}
		r.end()
		if _, err := r.Snapshot(); !errors.Is(err, ErrNotSynced) {
			t.Errorf("after the term the view is there: %v", err)
		}
		w.address("10.0.0.1", "missing") // goes away while nobody looks
		time.Sleep(time.Hour)

		r = w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		if view, err = r.Snapshot(); err != nil {
			t.Fatal(err)
		}
		after := map[string]time.Time{}
		for _, finding := range view.Current {
			after[finding.Name] = finding.FirstSeen
		}
		gone := "findings/not-allocated.ip-addresses.10.0.0.1"
		if len(view.Ended) != 1 || view.Ended[0].Name != gone || view.Ended[0].End != repairstore.EndGone {
			t.Errorf("ended %+v, want %s gone", view.Ended, gone)
		}
		delete(before, gone)
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("first sights (-before +after):\n%s", diff)
		}
		if opened := r.reporter.openedNames(); len(opened) != 0 {
			t.Errorf("%v are told anew", opened)
		}
	})
}

func TestAuditor_HistoryIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		cfg := w.config()
		cfg.AutoRepair, cfg.FindingHistory, cfg.RepairHistory = true, 3, 2
		r := w.lead(t, cfg)
		defer r.end()
		for i := range 6 {
			w.service(fmt.Sprint("s", i), fmt.Sprintf("10.0.0.%d", 10+i))
			time.Sleep(settleTime)
		}
		if repairs := w.repairs(t); len(repairs) != 2 {
			t.Errorf("%d repairs are remembered, want 2", len(repairs))
		}
		if kept, _, err := (fakeStore{w}).Findings(t.Context()); err != nil || len(kept) != 3 {
			t.Errorf("%d findings are remembered, %v, want 3", len(kept), err)
		}
		view, err := r.Snapshot()
		if err != nil || len(view.Ended) != 3 || !slices.ContainsFunc(view.Ended, func(f Finding) bool { return f.Subject == "10.0.0.15" }) {
			t.Errorf("ended %+v, %v, want the last three", view, err)
		}
	})
}

// An outage of the journal or of a dependency leaves the repair to be ended later, and is told.
func TestAuditor_AnOutageIsWaitedFor(t *testing.T) {
	for _, outage := range []error{repairstore.ErrUnavailable, ErrUnavailable, rangestore.ErrUnavailable} {
		synctest.Test(t, func(t *testing.T) {
			w := newDamagedCluster(t)
			w.onWrite(func(string, bool) error { return outage })
			cfg := w.config()
			cfg.AutoRepair = true
			r := w.lead(t, cfg)
			defer r.end()
			time.Sleep(5 * time.Minute)
			if err := r.lastError(); !errors.Is(err, outage) || !strings.Contains(err.Error(), "no pass has succeeded for") {
				t.Errorf("error = %v, want %v and since when", err, outage)
			}
			w.onWrite(nil)
			time.Sleep(time.Minute)
			w.wantRepaired(t)
			if err := r.lastError(); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

func TestNewPlan_OfManyFindingsTellsSomeAndHowManyMore(t *testing.T) {
	const many = 20_000
	chosen := map[string]Finding{}
	for i := range many {
		name := fmt.Sprintf("findings/duplicate-owner.ip-addresses.%05d", i)
		chosen[name] = Finding{Finding: repairstore.Finding{
			Finding: allocation.Finding{Name: name, Code: allocation.DuplicateOwner, State: allocation.StateOpen, UnsafeReason: "a person must choose"},
		}}
	}
	plan, err := newPlan(chosen, time.Unix(7, 0))
	if err != nil || len(plan.Steps) != 0 || plan.Token != "" {
		t.Fatalf("plan is %v with token %q, %v; want no steps", plan.Steps, plan.Token, err)
	}
	if len(plan.Left) != maxPlanLeft || plan.Omitted != many-maxPlanLeft {
		t.Errorf("%d findings are left and %d omitted, want %d of %d to be told", len(plan.Left), plan.Omitted, maxPlanLeft, many)
	}
	if first := plan.Left[0].Name; first != "findings/duplicate-owner.ip-addresses.00000" {
		t.Errorf("the first is %s", first)
	}
}

func TestView_SaysOnceThatNothingHasBeenReadAndWhatIsMissing(t *testing.T) {
	a := &Controller{}
	a.setNotSynced(fmt.Errorf("%w: %w", ErrNotSynced, errors.New("services have not been read yet")))
	_, err := a.Snapshot()
	if want := "what is allocated has not been read yet: services have not been read yet"; !errors.Is(err, ErrNotSynced) || err.Error() != want {
		t.Errorf("View() = %v, want %s", err, want)
	}
}
