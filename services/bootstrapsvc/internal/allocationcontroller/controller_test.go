package allocationcontroller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// settleTime exceeds the grace periods of a second and less.
const settleTime = 3 * time.Second

// newDamagedCluster returns a cluster with a finding of each kind that has safe steps and a short
// grace period: an address without object, one with wrong labels, one with a wrong parent, and two
// ports that are not allocated.
func newDamagedCluster(t testing.TB) *fakeCluster {
	w := newFakeCluster(t)
	w.addService("missing", "10.0.0.1")
	w.addService("labels", "10.0.0.2")
	w.addAddress("10.0.0.2", "labels", func(a *allocation.IPAddress) { a.Family = "" })
	w.addService("named", "10.0.0.3")
	w.addAddress("10.0.0.3", "missing")
	w.addService("ports", "10.0.0.4", 30001, 30002)
	w.addAddress("10.0.0.4", "ports")
	return w
}

func (w *fakeCluster) wantRepaired(t testing.TB) {
	t.Helper()
	cluster := fakeObjects{w}
	for address, parent := range map[string]string{"10.0.0.1": "missing", "10.0.0.2": "labels", "10.0.0.3": "named", "10.0.0.4": "ports"} {
		got, _ := cluster.IPAddress(t.Context(), address)
		if got == nil || got.Parent.Name != parent || got.Family != allocation.FamilyIPv4 {
			t.Errorf("IPAddress %s is %+v, want parent %s", address, got, parent)
		}
	}
	for _, port := range []int{30001, 30002} {
		if !w.hasPort(port) {
			t.Errorf("port %d is not allocated", port)
		}
	}
}

func TestController_RepairsSafeFindingsAndStoresTheRepairs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(settleTime)
		w.wantRepaired(t)
		if current := r.current(t); len(current) != 0 {
			t.Errorf("%v are still current", current)
		}
		snapshot, err := r.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if len(snapshot.Ended) != 5 {
			t.Errorf("%d findings have ended, want 5", len(snapshot.Ended))
		}
		for _, finding := range snapshot.Ended {
			if finding.End != allocation.EndRepaired || finding.RepairedBy == "" {
				t.Errorf("%s ended as %q by %q", finding.Name, finding.End, finding.RepairedBy)
			}
		}
		for _, repair := range w.repairs(t) {
			if !repair.Complete() || repair.Ended.IsZero() || !repair.Requester.IsAutomatic() || repair.Progress.Attempts != 1 {
				t.Errorf("repair %+v", repair)
			}
		}
		if opened := r.reporter.openedNames(); len(opened) != 5 {
			t.Errorf("opened %v, want each of five once", opened)
		}
		for action, want := range map[decisions.Action]int{decisions.FindingOpened: 5, decisions.RepairApplied: 6, decisions.FindingClosed: 5} {
			if recorded := testkit.Decisions(r.log, action); len(recorded) != want {
				t.Errorf("decisions %v, want %d times %v", recorded, want, action)
			}
		}
		if started, ended := testkit.Decisions(r.log, decisions.RepairStarted), testkit.Decisions(r.log, decisions.RepairEnded); len(started) == 0 || len(started) != len(ended) {
			t.Errorf("repairs that started %v and ended %v", started, ended)
		}
		before := w.writesDone()
		time.Sleep(30 * time.Minute)
		if diff := cmp.Diff(before, w.writesDone()); diff != "" {
			t.Errorf("later wrote (-before +after):\n%s", diff)
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

func TestController_WithoutAutoRepairItWritesOnlyFindings(t *testing.T) {
	t.Parallel()
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
		if current := r.current(t); len(current) != 5 {
			t.Errorf("%v are current, want five", current)
		}
	})
}

var errCrash = errors.New("the process crashes here")

// A plan is applied, and the process crashes before or after one of its writes. After each such
// crash, the next leader finishes the repair.
func TestController_NextLeaderFinishesARepairAfterACrashAtAnyWrite(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		for nth := 0; ; nth++ {
			reached := false
			synctest.Test(t, func(t *testing.T) { reached = crashAt(t, nth, after) })
			if !reached {
				if nth < 8 { // bits of one range are written together, or not
					t.Errorf("a repair has only %d writes", nth)
				}
				break
			}
		}
	}
}

// crashAt applies a plan, crashes at its nth write, and checks the result of the next leader.
func crashAt(t *testing.T, nth int, after bool) (reached bool) {
	w := newDamagedCluster(t)
	first := w.lead(t, w.config())
	time.Sleep(settleTime)
	plan := first.plan(t)
	if len(plan.Steps) != 6 {
		t.Fatalf("plan %v", plan)
	}
	name := ""
	var writes atomic.Int64 // several workers write
	w.onWrite(func(write string, isAfter bool) error {
		if isAfter != after {
			return nil
		}
		if writes.Add(1) == int64(nth)+1 {
			reached, name = true, write
			first.lose()
			return errCrash
		}
		return nil
	})
	_, err := first.apply(plan)
	first.end()
	w.onWrite(nil)
	if reached == (err == nil) {
		t.Errorf("apply = %v, though the process crashed: %t", err, reached)
	}
	next := w.lead(t, w.config())
	defer next.end()
	time.Sleep(settleTime)
	begun := slices.ContainsFunc(w.repairs(t), func(r repairstore.Repair) bool { return r.ID == plan.ID })
	if reached && !begun && name != "begin" {
		t.Errorf("crashed at %s before the plan was stored", name)
	}
	repair, err := next.apply(plan)
	if err != nil || repair.State() != repairstore.Succeeded {
		t.Errorf("crash at %s (after: %t): repair %+v, %v", name, after, repair, err)
	}
	w.wantRepaired(t)
	time.Sleep(settleTime)
	if current := next.current(t); len(current) != 0 {
		t.Errorf("crash at %s (after: %t): %v are still current", name, after, current)
	}
	if repairs := w.repairs(t); len(repairs) != 1 {
		t.Errorf("crash at %s: %d repairs, want one", name, len(repairs))
	}
	return reached
}

// A second repair controller makes the same writes at the same time. Nothing is lost, and the
// repair ends.
func TestController_ConcurrentRepairController(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		met := map[string]bool{}
		w.onWrite(func(write string, after bool) error {
			if after || met[write] {
				return nil
			}
			met[write] = true
			switch write { // the other controller writes first
			case "create 10.0.0.1":
				w.addAddress("10.0.0.1", "missing")
			case "relabel 10.0.0.2":
				w.addAddress("10.0.0.2", "labels")
			case "delete 10.0.0.3":
				w.addAddress("10.0.0.3", "named")
			case "swap servicenodeports":
				w.putBits(30001, 30002, 30007)
			}
			return nil
		})
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(settleTime)
		w.wantRepaired(t)
		if !w.hasPort(30007) || !met["create 10.0.0.1"] || !met["relabel 10.0.0.2"] || !met["delete 10.0.0.3"] || !met["swap servicenodeports"] {
			t.Errorf("the other controller's port is allocated: %t; conflicts at %v", w.hasPort(30007), met)
		}
		for _, repair := range w.repairs(t) {
			if repair.Ended.IsZero() {
				t.Errorf("repair %+v has not ended", repair)
			}
		}
	})
}

func TestController_LeakedPortIsFreedAfterItsGracePeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("user", "10.0.0.1", 30001)
		w.addAddress("10.0.0.1", "user")
		w.putBits(30001, 30005)
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(64 * time.Second)
		if !w.hasPort(30005) {
			t.Fatal("freed during its grace period")
		}
		time.Sleep(30 * time.Second)
		if w.hasPort(30005) || !w.hasPort(30001) {
			t.Errorf("30005 allocated: %t, 30001 allocated: %t, want only the latter", w.hasPort(30005), w.hasPort(30001))
		}
	})
}

func TestController_GapRestartsTheGracePeriodOfALeak(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		r := w.lead(t, w.autoRepairConfig())
		for range 10 {
			time.Sleep(55 * time.Second)
			w.relist(KindServices)
		}
		r.end()
		for range 5 { // a new leader ignores the observations of an earlier one
			r = w.lead(t, w.autoRepairConfig())
			time.Sleep(55 * time.Second)
			r.end()
		}
		if !w.hasPort(30005) {
			t.Error("freed although no term watched it for the whole grace period")
		}
	})
}

// The watch of IPAddresses is behind: kube-apiserver repairs what it shows before the finding
// opens.
func TestController_NoWrongReferenceIfALiveReadShowsTheRightOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("named", "10.0.0.3")
		w.addAddress("10.0.0.3", "missing")
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(500 * time.Millisecond)
		w.locked(func() { w.stale[KindIPAddresses] = true })
		w.addAddress("10.0.0.3", "named")
		time.Sleep(10 * time.Minute)
		if opened, repairs := r.reporter.openedNames(), w.repairs(t); len(opened)+len(repairs) > 0 {
			t.Errorf("opened %v, repairs %+v, want none", opened, repairs)
		}
	})
}

func TestController_OutOfRangeOpensOnlyAfterALiveRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		w.locked(func() { // the watch of ServiceCIDRs does not show the new one
			w.cidrs = append(w.cidrs, allocation.CIDR{Name: "more", Prefixes: []string{"10.7.0.0/24"}, Ready: true})
		})
		w.addService("inside", "10.7.0.5")
		w.addAddress("10.7.0.5", "inside")
		w.addService("outside", "10.9.0.5")
		w.addAddress("10.9.0.5", "outside")
		w.locked(func() { w.getErr = guarded.ErrUnavailable })
		time.Sleep(time.Minute)
		if opened := r.reporter.openedNames(); len(opened) > 0 {
			t.Errorf("opened %v although nothing could be read", opened)
		}
		w.locked(func() { w.getErr = nil })
		time.Sleep(time.Minute)
		const want = "findings/out-of-range.ip-addresses.10.9.0.5"
		if opened := r.reporter.openedNames(); len(opened) != 1 || opened[0] != want {
			t.Errorf("opened %v, want %s", opened, want)
		}
		w.relist(KindServiceCIDRs)
		time.Sleep(settleTime)
		if current := r.current(t); len(current) != 1 {
			t.Errorf("%v are current, want %s", current, want)
		}
	})
}

// The live list before a free shows a Service that the watch has not reported yet.
func TestController_FreesNothingThatALiveListShowsInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(30 * time.Second)
		w.locked(func() { w.stale[KindServices] = true })
		w.addService("late", "None", 30005)
		time.Sleep(10 * time.Minute)
		if !w.hasPort(30005) {
			t.Error("a port in use was freed")
		}
		if repairs := w.repairs(t); len(repairs) != 0 {
			t.Errorf("repairs %+v, want none begun", repairs)
		}
	})
}

// A port that was freed and allocated again after the last event of the watch may belong to a
// Service that kube-apiserver is about to write. No list has this Service yet.
func TestController_FreesNothingThatWasAllocatedAgainAfterTheLastEvent(t *testing.T) {
	t.Parallel()
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
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(100 * time.Second)
		if len(w.repairs(t)) == 0 || !w.hasPort(30005) {
			t.Errorf("repairs %+v, allocated: %t, want one that did not free it", w.repairs(t), w.hasPort(30005))
		}
	})
}

// The same may have happened between two terms, so an open finding of an earlier leader starts a
// new grace period.
func TestController_FreePlannedByAnEarlierLeaderIsRejected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		first := w.lead(t, w.config())
		time.Sleep(100 * time.Second)
		plan := first.plan(t)
		if len(plan.Steps) != 1 {
			t.Fatalf("plan %v", plan)
		}
		w.onWrite(func(write string, after bool) error {
			if write == "begin" && after {
				first.lose()
				return errCrash
			}
			return nil
		})
		if _, err := first.apply(plan); err == nil {
			t.Error("applied by a process that crashed")
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

// The range of another cluster looks full of leaks, and lacks the ports that are in use here.
func TestController_RangeOfAnotherClusterIsNeitherComparedNorWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.addService("user", "None", 30001)
		w.putBits(30005)
		w.foreign = "it is another cluster's"
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(10 * time.Minute)
		if current := r.current(t); len(current) != 0 || len(w.writesDone()) != 0 || r.lastError() != nil {
			t.Errorf("%v are current, written %v, %v, want nothing", current, w.writesDone(), r.lastError())
		}
		snapshot, err := r.Snapshot()
		if err != nil || snapshot.Stores[1].Present || snapshot.Stores[1].Problem != w.foreign {
			t.Errorf("states %+v, %v", snapshot.Stores, err)
		}
		w.locked(func() { w.foreign = "" })
		time.Sleep(10 * time.Second)
		if !w.hasPort(30001) {
			t.Error("the port in use is not allocated once the range is known to be this cluster's")
		}
		if snapshot, err = r.Snapshot(); err != nil || !snapshot.Stores[1].Present || snapshot.Stores[1].Problem != "" {
			t.Errorf("states %+v, %v", snapshot.Stores, err)
		}
	})
}

func TestController_WithoutClusterIdentityRangesAreNotCompared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		identity := allocation.Key{Namespace: "default", Name: "kubernetes"}
		delete(w.services, identity)
		w.addService("user", "None", 30001)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(time.Minute)
		if current := r.current(t); len(current) != 0 {
			t.Errorf("%v are current before the range is verified", current)
		}
		w.addService("kubernetes", "None")
		time.Sleep(10 * time.Second)
		if current := r.current(t); len(current) != 1 {
			t.Errorf("%v are current, want port 30001", current)
		}
	})
}

// While a repair runs, another one is rejected within seconds, and the same plan waits.
func TestController_RejectsARepairWhileAnotherOneRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		first, second := r.plan(t, "findings/not-allocated.ip-addresses.10.0.0.1"), r.plan(t)
		w.onWrite(func(write string, after bool) error {
			if write == "create 10.0.0.1" && !after {
				time.Sleep(20 * time.Second)
			}
			return nil
		})
		outcome := func(plan repairstore.Plan) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := r.apply(plan)
				done <- err
			}()
			return done
		}
		one := outcome(first)
		time.Sleep(time.Millisecond)
		begun := time.Now()
		again, other := outcome(first), outcome(second)
		if err := <-other; !errors.Is(err, ErrRepairRunning) || time.Since(begun) > 2*time.Second {
			t.Errorf("the other repair gets %v after %s, want %v soon", err, time.Since(begun), ErrRepairRunning)
		}
		if errs := []error{<-one, <-again}; errs[0] != nil || errs[1] != nil {
			t.Errorf("the first one and the same again: %v", errs)
		}
		if repairs := w.repairs(t); len(repairs) != 1 {
			t.Errorf("%d repairs, want one", len(repairs))
		}
	})
}

func TestController_FirstSeenSurvivesATerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		r := w.lead(t, w.config())
		time.Sleep(settleTime)
		before := map[string]time.Time{}
		snapshot, err := r.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		for _, finding := range snapshot.Current {
			before[finding.Name] = finding.FirstSeen
		}
		r.end()
		if _, err := r.Snapshot(); !errors.Is(err, ErrNotSynced) {
			t.Errorf("after the term: %v", err)
		}
		w.addAddress("10.0.0.1", "missing") // disappears between two terms
		time.Sleep(time.Hour)

		r = w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		if snapshot, err = r.Snapshot(); err != nil {
			t.Fatal(err)
		}
		after := map[string]time.Time{}
		for _, finding := range snapshot.Current {
			after[finding.Name] = finding.FirstSeen
		}
		gone := "findings/not-allocated.ip-addresses.10.0.0.1"
		if len(snapshot.Ended) != 1 || snapshot.Ended[0].Name != gone || snapshot.Ended[0].End != allocation.EndResolved {
			t.Errorf("ended %+v, want %s resolved", snapshot.Ended, gone)
		}
		delete(before, gone)
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("FirstSeen (-before +after):\n%s", diff)
		}
		if opened := r.reporter.openedNames(); len(opened) != 0 {
			t.Errorf("%v are reported again", opened)
		}
	})
}

func TestController_HistoryIsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		cfg := w.config()
		cfg.AutoRepair, cfg.FindingHistory, cfg.RepairHistory = true, 3, 2
		r := w.lead(t, cfg)
		defer r.end()
		for i := range 6 {
			w.addService(fmt.Sprint("s", i), fmt.Sprintf("10.0.0.%d", 10+i))
			time.Sleep(settleTime)
		}
		if repairs := w.repairs(t); len(repairs) != 2 {
			t.Errorf("%d repairs are stored, want 2", len(repairs))
		}
		if kept, _, err := (fakeStore{w}).Findings(t.Context()); err != nil || len(kept) != 3 {
			t.Errorf("%d findings are stored, %v, want 3", len(kept), err)
		}
		snapshot, err := r.Snapshot()
		if err != nil || len(snapshot.Ended) != 3 || !slices.ContainsFunc(snapshot.Ended, func(f allocation.Finding) bool { return f.Subject == "10.0.0.15" }) {
			t.Errorf("ended %+v, %v, want the last three", snapshot, err)
		}
	})
}

// During an outage of a dependency, passes report its error. Afterwards the repair is finished.
func TestController_RepairsAfterAnOutage(t *testing.T) {
	t.Parallel()
	for _, outage := range []error{repairstore.ErrUnavailable, guarded.ErrUnavailable, rangestore.ErrUnavailable} {
		synctest.Test(t, func(t *testing.T) {
			w := newDamagedCluster(t)
			w.onWrite(func(string, bool) error { return outage })
			r := w.lead(t, w.autoRepairConfig())
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

func TestSnapshot_ErrorNamesWhatIsMissingOnce(t *testing.T) {
	t.Parallel()
	c := New(Config{}, Deps{})
	c.published.drop(fmt.Errorf("%w: %w", ErrNotSynced, errors.New("services have not been read yet")))
	_, err := c.Snapshot()
	if want := "what is allocated has not been read yet: services have not been read yet"; !errors.Is(err, ErrNotSynced) || err.Error() != want {
		t.Errorf("Snapshot() = %v, want %s", err, want)
	}
}
