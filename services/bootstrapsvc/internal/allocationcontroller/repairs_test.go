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

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

func TestRepairBackoff_OfEachFinding(t *testing.T) {
	t.Parallel()
	q, now := newRepairBackoff(), time.Unix(7, 0)
	pauses := func(delay func(string, time.Time)) []time.Duration {
		var pauses []time.Duration
		for range 8 {
			delay("a", now)
			pauses = append(pauses, q.notBefore["a"].Sub(now))
		}
		return pauses
	}
	second := time.Second
	retries := []time.Duration{second, 2 * second, 4 * second, 5 * second, 5 * second, 5 * second, 5 * second, 5 * second}
	if diff := cmp.Diff(retries, pauses(q.failed)); diff != "" {
		t.Errorf("pauses between retries (-want +got):\n%s", diff)
	}
	starts := []time.Duration{second, 2 * second, 4 * second, 8 * second, 16 * second, 32 * second, time.Minute, time.Minute}
	if diff := cmp.Diff(starts, pauses(q.started)); diff != "" {
		t.Errorf("pauses between starts (-want +got):\n%s", diff)
	}
	if !q.notBefore["b"].IsZero() || q.hasFailed("b") || !q.hasFailed("a") {
		t.Error("the backoff of one finding is that of another")
	}
	q.succeeded("a")
	if q.failed("a", now); q.notBefore["a"].Sub(now) != second {
		t.Errorf("after a success the first pause is %s", q.notBefore["a"].Sub(now))
	}
	q.prune(func(finding string) bool { return finding != "a" })
	if q.started("a", now); q.notBefore["a"].Sub(now) != second {
		t.Errorf("after the end of the finding the first pause is %s", q.notBefore["a"].Sub(now))
	}
}

// The creation of one address fails for minutes, as behind an admission webhook that does not
// answer.
func TestController_FailingRepairDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const failing = "findings/not-allocated.ip-addresses.10.0.0.1"
		w := newDamagedCluster(t)
		w.onWrite(func(write string, after bool) error {
			if write == "create 10.0.0.1" && !after {
				return guarded.ErrUnavailable
			}
			return nil
		})
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(settleTime)
		want := map[string]allocation.FindingState{failing: allocation.StateOpen}
		if diff := cmp.Diff(want, r.current(t)); diff != "" {
			t.Errorf("findings (-want +got):\n%s", diff)
		}
		time.Sleep(5 * time.Minute)
		w.addService("later", "10.0.0.9", 30009)
		time.Sleep(2 * time.Second)
		if diff := cmp.Diff(want, r.current(t)); diff != "" || !w.hasPort(30009) {
			t.Errorf("port 30009 is allocated: %t; findings (-want +got):\n%s", w.hasPort(30009), diff)
		}
		if err := r.lastError(); !errors.Is(err, guarded.ErrUnavailable) {
			t.Errorf("error = %v, want %v", err, guarded.ErrUnavailable)
		}
		w.onWrite(nil)
		time.Sleep(retryBackoffMax + time.Second)
		w.wantRepaired(t)
		if current, err := r.current(t), r.lastError(); len(current) != 0 || err != nil {
			t.Errorf("%v are still current, %v", current, err)
		}
		for _, repair := range w.repairs(t) {
			if !repair.Complete() || repair.Ended.IsZero() {
				t.Errorf("repair %+v is not complete", repair)
			}
		}
	})
}

func TestController_UnfinishedRepairRejectsOnlyRepairsOfItsFindings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		r := w.lead(t, w.config())
		defer r.end()
		time.Sleep(settleTime)
		w.onWrite(func(write string, after bool) error {
			if write == "create 10.0.0.1" && !after {
				return guarded.ErrUnavailable
			}
			return nil
		})
		const failing, ports = "findings/not-allocated.ip-addresses.10.0.0.1", "findings/not-allocated.node-ports.30001"
		one, both, other := r.plan(t, failing), r.plan(t, failing, ports), r.plan(t, ports)
		repair, err := r.apply(one)
		if err != nil || repair.State() != repairstore.Running || !strings.Contains(repair.Progress.Steps[0].Error, guarded.ErrUnavailable.Error()) {
			t.Errorf("repair that fails = %+v, %v, want it running with the error of its step", repair, err)
		}
		if _, err := r.apply(both); !errors.Is(err, ErrRepairRunning) || !errors.Is(err, guarded.ErrUnavailable) {
			t.Errorf("another repair of the same finding = %v, want %v", err, ErrRepairRunning)
		}
		if repair, err := r.apply(other); err != nil || repair.State() != repairstore.Succeeded {
			t.Errorf("repair of another finding = %+v, %v", repair, err)
		}
		w.onWrite(nil)
		if repair, err := r.apply(one); err != nil || repair.State() != repairstore.Succeeded || repair.Progress.Steps[0].Attempts < 2 {
			t.Errorf("the same plan again = %+v, %v", repair, err)
		}
	})
}

// The address that cannot be deleted is one of several in a batch of frees.
func TestController_FailingFreeDelaysNoOtherOfItsBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		for _, address := range []string{"10.0.0.11", "10.0.0.12", "10.0.0.13"} {
			w.addAddress(address, "deleted")
		}
		w.onWrite(func(write string, after bool) error {
			if write == "delete 10.0.0.11" && !after {
				return guarded.ErrUnavailable
			}
			return nil
		})
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(70 * time.Second)
		writes := w.writesDone()
		if slices.Contains(writes, "delete 10.0.0.11") || !slices.Contains(writes, "delete 10.0.0.12") || !slices.Contains(writes, "delete 10.0.0.13") {
			t.Errorf("wrote %v, want the deletes of 10.0.0.12 and 10.0.0.13", writes)
		}
		w.onWrite(nil)
		time.Sleep(time.Minute)
		if current := r.current(t); len(current) != 0 {
			t.Errorf("%v are still current", current)
		}
	})
}

// A list of all Services fails, which only repairs that free something need.
func TestController_FailingReadDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeCluster(t)
		w.putBits(30005)
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(60 * time.Second)
		w.locked(func() { w.listErr = guarded.ErrUnavailable })
		time.Sleep(5 * time.Minute)
		w.addService("later", "10.0.0.9", 30009)
		time.Sleep(2 * time.Second)
		want := map[string]allocation.FindingState{leakedPort: allocation.StateOpen}
		if diff := cmp.Diff(want, r.current(t)); diff != "" || !w.hasPort(30009) || !w.hasPort(30005) {
			t.Errorf("ports 30009 and 30005 are allocated: %t, %t; findings (-want +got):\n%s", w.hasPort(30009), w.hasPort(30005), diff)
		}
		if err := r.lastError(); !errors.Is(err, guarded.ErrUnavailable) {
			t.Errorf("error = %v, want %v", err, guarded.ErrUnavailable)
		}
		w.locked(func() { w.listErr = nil })
		time.Sleep(startBackoffMax + time.Second)
		if current, err := r.current(t), r.lastError(); len(current) != 0 || err != nil || w.hasPort(30005) {
			t.Errorf("%v are still current, %v", current, err)
		}
	})
}

// While every write fails, neither the number of findings nor their backoffs cause a request storm.
func TestController_OutageCausesFewRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many, seconds = 300, 60
		w := newFakeCluster(t)
		for i := range many {
			w.addService(fmt.Sprint("s", i), fmt.Sprintf("10.0.%d.%d", 1+i/250, 1+i%250))
		}
		var attempts atomic.Int64
		w.onWrite(func(write string, after bool) error {
			if strings.HasPrefix(write, "create") && !after {
				attempts.Add(1)
				return guarded.ErrUnavailable
			}
			return nil
		})
		r := w.lead(t, w.autoRepairConfig())
		defer r.end()
		time.Sleep(seconds * time.Second)
		limit := int64(many + seconds*int(time.Second/retryInterval) + maxWorkers) // each finding once, and the retries
		if n := attempts.Load(); n < many || n > limit {
			t.Errorf("%d requests in %d seconds, want at most %d", n, seconds, limit)
		}
		w.onWrite(nil)
		time.Sleep(retryBackoffMax + time.Second)
		if current, err := r.current(t), r.lastError(); len(current) != 0 || err != nil {
			t.Errorf("%d findings are still current, %v", len(current), err)
		}
	})
}

// An automatic repair that is refused for ever is no failed step, so each refused attempt counts,
// whatever refuses it. After the cause is gone, none does.
func TestController_RefusedAttemptsOfAutomaticRepairsCount(t *testing.T) {
	t.Parallel()
	refuseCreate := func(err error) func(*fakeCluster) {
		return func(w *fakeCluster) {
			w.onWrite(func(write string, after bool) error {
				if write == "create 10.0.0.1" && !after {
					return err
				}
				return nil
			})
		}
	}
	denied := errors.New("denied by a policy")
	missing := func(t *testing.T) *fakeCluster {
		w := newFakeCluster(t)
		w.addService("a", "10.0.0.1")
		return w
	}
	for name, c := range map[string]struct {
		damaged func(t *testing.T) *fakeCluster
		refuse  func(*fakeCluster)
		within  time.Duration
		verb    planned.Verb
		// more is the bound of the attempts in 15 minutes, if it is greater than that of the alert.
		more int
	}{
		"the read before the repair": {
			damaged: missing, refuse: func(w *fakeCluster) { w.locked(func() { w.getErr = denied }) }, within: time.Minute, verb: planned.Create,
		},
		"the write": {damaged: missing, refuse: refuseCreate(denied), within: time.Minute, verb: planned.Create},
		"the dry run before the write": {
			damaged: replacing, within: time.Minute, verb: planned.Delete,
			refuse: func(w *fakeCluster) { w.locked(func() { w.refused = map[string]error{"10.0.0.1": denied} }) },
		},
		// The address that is missing in between is a finding of its own, with fewer attempts.
		"the second half of a replacement": {damaged: replacing, refuse: refuseCreate(denied), within: time.Minute, verb: planned.Create, more: 40},
		"a webhook that never answers":     {damaged: missing, refuse: refuseCreate(guarded.ErrUnavailable), within: 10 * time.Minute, verb: planned.Create},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := c.damaged(t)
				c.refuse(w)
				r := w.lead(t, w.autoRepairConfig())
				defer r.end()
				time.Sleep(c.within)
				if refused := r.reporter.takeRefused(); refused[c.verb] <= 3 || len(refused) != 1 {
					t.Errorf("refused attempts within %v: %v, want more than 3 of %s", c.within, refused, c.verb)
				}
				time.Sleep(15 * time.Minute) // the range of the alert
				if refused := r.reporter.takeRefused(); refused[c.verb] <= max(3, c.more) {
					t.Errorf("refused attempts in the next 15 minutes: %v, want more than %d", refused, max(3, c.more))
				}
				w.onWrite(nil)
				w.locked(func() { w.getErr, w.refused = nil, nil })
				time.Sleep(refusedBackoffMax + time.Second)
				w.wantAllocatedWithin(t, time.Second, "10.0.0.1")
				r.reporter.takeRefused()
				time.Sleep(15 * time.Minute)
				if refused := r.reporter.takeRefused(); len(refused) > 0 {
					t.Errorf("refused attempts after the cause is gone: %v", refused)
				}
			})
		})
	}
}

// An outage of a minute is no refusal, and neither is a refused read while nothing is repaired
// without approval.
func TestController_OutagesAndRepairsThatWaitForApprovalCountNoRefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDamagedCluster(t)
		w.onWrite(func(string, bool) error { return guarded.ErrUnavailable })
		r := w.lead(t, w.autoRepairConfig())
		time.Sleep(time.Minute)
		r.end()
		w.onWrite(nil)
		w.locked(func() { w.getErr = errors.New("forbidden") })
		approved := w.lead(t, w.config())
		time.Sleep(time.Minute)
		approved.end()
		if outage, waiting := r.reporter.takeRefused(), approved.reporter.takeRefused(); len(outage)+len(waiting) > 0 {
			t.Errorf("refused attempts in the outage: %v, without automatic repairs: %v, want none", outage, waiting)
		}
	})
}
