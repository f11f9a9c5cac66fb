package sessioncontroller_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// reported sends a beat with a report.
func reported(t testing.TB, ctl *sessioncontroller.Controller, ref session.Ref, report sessioncontroller.Report) *sessioncontroller.Batch {
	t.Helper()
	batch := sessioncontroller.NewBatch()
	batch.Refs, batch.Sequence = []session.Ref{ref}, 2
	batch.Reports = []sessioncontroller.BeatReport{{Index: 0, Report: report}}
	if err := ctl.Process(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	return batch
}

func age(d time.Duration) sessioncontroller.Report { return sessioncontroller.Report{ObservedAge: d} }

func condition(kind string, status sessioncontroller.ConditionStatus, transitionAge time.Duration) sessioncontroller.ReportedCondition {
	return sessioncontroller.ReportedCondition{Type: kind, Reason: "WHY", Message: "because", Status: status, TransitionAge: transitionAge}
}

func reportOf(conditions ...sessioncontroller.ReportedCondition) sessioncontroller.Report {
	return sessioncontroller.Report{Conditions: conditions}
}

// A living agent does not hide a dead kubelet.
func TestReport_HolderExpiresAsIfTheBeatHadBeenSentWhenItWasObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		ref := register(t, ctl, node("n1", "1"))[0].Ref
		begin := time.Now()
		for silence := 5 * time.Second; silence <= 70*time.Second; silence += 5 * time.Second {
			time.Sleep(5*time.Second - time.Millisecond)
			batch := reported(t, ctl, ref, age(silence))
			left := max(40*time.Second-silence, 0)
			if batch.Renewed != 1 || (batch.Grant.TTL-left).Abs() > 100*time.Millisecond {
				t.Errorf("after %v of silence: %d renewed, %v left, want %v", silence, batch.Renewed, batch.Grant.TTL, left)
			}
			time.Sleep(time.Millisecond)
		}
		lease := getLease(t, ctl, node("n1", "1"))
		if lease.State != session.Expired || lease.ObserveTime.Sub(begin) > time.Second {
			t.Errorf("state %v, last beat %v after the last observation", lease.State, lease.ObserveTime.Sub(begin))
		}
		if heard := time.Since(lease.LastReportTime); heard > time.Second {
			t.Errorf("the agent was last heard %v ago", heard)
		}
		reported(t, ctl, ref, age(time.Second))
		if lease := getLease(t, ctl, node("n1", "1")); lease.State != session.Alive {
			t.Errorf("the holder was observed a second ago and is %v", lease.State)
		}
		beat(t, ctl, ref)
		if lease := getLease(t, ctl, node("n1", "1")); !lease.LastReportTime.IsZero() {
			t.Errorf("last report at %v after a beat without a report", lease.LastReportTime)
		}
	})
}

// The agent has known for long that its kubelet is dead, and registers at a new replica.
func TestReport_RegistrationOfASilentHolderIsExpiredAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		sub := watch(t, ctl, nil)
		defer sub.Close()
		batch := sessioncontroller.NewBatch()
		for i, silence := range []time.Duration{time.Second, 30 * time.Second, 45 * time.Second, 24 * time.Hour} {
			report := age(silence)
			batch.Registrations = append(batch.Registrations, sessioncontroller.Registration{
				Holder: node(fmt.Sprintf("n%d", i), "1"), Sequence: 1, Report: &report,
			})
		}
		if err := ctl.Process(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		for i, want := range []session.State{session.Alive, session.Suspect, session.Expired, session.Expired} {
			lease := getLease(t, ctl, node(fmt.Sprintf("n%d", i), "1"))
			if lease.State != want || batch.Results[i].Outcome != session.Opened {
				t.Errorf("n%d is %v with outcome %v, want %v", i, lease.State, batch.Results[i].Outcome, want)
			}
			if got, left := batch.Results[i].Grant.TTL, max(time.Until(lease.Deadline), 0); (got - left).Abs() > 10*time.Millisecond {
				t.Errorf("n%d has %v left by its grant, %v by its lease", i, got, left)
			}
		}
		// A lease that ends at once would be registered again and again.
		if ago := time.Since(getLease(t, ctl, node("n3", "1")).ObserveTime).Round(time.Second); ago != 40*time.Second+30*time.Minute {
			t.Errorf("a day counts as %v at the begin of a lease", ago)
		}
		time.Sleep(time.Second)
		for _, job := range startWrites(t, ctl) {
			t.Errorf("the Lease of %s is written for %v, and its holder has not been observed since it registered", job.Name, job.Reason)
		}
	})
}

func TestReport_ConditionsAreKeptAndWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		ref := register(t, ctl, node("n1", "1"))[0].Ref
		sub := watch(t, ctl, nil)
		defer sub.Close()
		transition := time.Now().Add(-time.Minute)
		for _, step := range []struct {
			what   string
			report sessioncontroller.Report
			events []string
			want   string
		}{
			{"first report", reportOf(condition("B", 1, time.Minute), condition("A", 2, -1)), []string{"~n1"}, "A2- B1-60"},
			{"the same, of another length on the way", reportOf(condition("B", 1, time.Minute+time.Second), condition("A", 2, -1)), nil, "A2- B1-60"},
			{"two of one type", reportOf(condition("B", 2, 0), condition("B", 1, time.Minute), condition("A", 2, -1)), nil, "A2- B1-60"},
			{"another transition", reportOf(condition("B", 1, 50*time.Second), condition("A", 2, -1)), []string{"~n1"}, "A2- B1-50"},
			{"another status", reportOf(condition("B", 2, 0), condition("A", 2, -1)), []string{"~n1"}, "A2- B2-0"},
			{"none", reportOf(), []string{"~n1"}, ""},
			{"none again", reportOf(), nil, ""},
		} {
			reported(t, ctl, ref, step.report)
			var got []string
			for _, c := range getLease(t, ctl, node("n1", "1")).Conditions {
				text := fmt.Sprintf("%s%d-", c.Type, c.Status)
				if !c.TransitionTime.IsZero() {
					text += fmt.Sprint(int(transition.Add(time.Minute).Sub(c.TransitionTime).Round(time.Second).Seconds()))
				}
				if c.Reason != "WHY" || c.Message != "because" {
					t.Errorf("%s: condition %+v", step.what, c)
				}
				got = append(got, text)
			}
			if strings.Join(got, " ") != step.want {
				t.Errorf("%s: conditions %q, want %q", step.what, strings.Join(got, " "), step.want)
			}
			if diff := cmp.Diff(step.events, names(drain(t, sub))); diff != "" {
				t.Errorf("%s: events (-want +got):\n%s", step.what, diff)
			}
		}
	})
}

func TestReport_ConditionsEndWithTheBootAndTheSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		n1, n2 := node("n1", "1"), node("n2", "1")
		registered := register(t, ctl, n1, n2)
		for _, r := range registered {
			reported(t, ctl, r.Ref, reportOf(condition("A", 1, 0)))
		}
		beat(t, ctl, registered[0].Ref)
		register(t, ctl, n1)
		if got := getLease(t, ctl, n1).Conditions; len(got) != 1 {
			t.Errorf("conditions %v after beats without a report", got)
		}
		register(t, ctl, node("n1", "2"))
		if got := getLease(t, ctl, node("n1", "2")).Conditions; got != nil {
			t.Errorf("the new boot has the conditions %v", got)
		}
		ctl.CompleteRelease(beginRelease(t, ctl, n2))
		register(t, ctl, n2)
		if got := getLease(t, ctl, n2).Conditions; got != nil {
			t.Errorf("the next session has the conditions %v", got)
		}
	})
}

func cutOffFor(d time.Duration) sessioncontroller.Report {
	return sessioncontroller.Report{Observed: true, CutOff: true, CutOffAge: d}
}

// A holder is cut off until a report does not say so any more. Another begin is another cut-off.
func TestReport_CutOffHoldsUntilAReportWithoutIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		n1 := node("n1", "1")
		ref := register(t, ctl, n1)[0].Ref
		reported(t, ctl, ref, sessioncontroller.Report{Observed: true})
		sub := watch(t, ctl, nil)
		defer sub.Close()
		drain(t, sub)
		begin := time.Now()
		for _, step := range []struct {
			what   string
			do     func()
			events []string
			since  time.Duration // of begin; -1 if it is not cut off
		}{
			{"it begins", func() { reported(t, ctl, ref, cutOffFor(3*time.Second)) }, []string{"~n1"}, -3 * time.Second},
			{"the same, of another length on the way", func() { reported(t, ctl, ref, cutOffFor(14*time.Second)) }, nil, -3 * time.Second},
			{"a bare handle", func() { beat(t, ctl, ref) }, nil, -3 * time.Second},
			{"a registration without a report", func() { register(t, ctl, n1) }, nil, -3 * time.Second},
			{"with conditions", func() {
				report := cutOffFor(43 * time.Second)
				report.Conditions = reportOf(condition("A", 1, 0)).Conditions
				reported(t, ctl, ref, report)
			}, []string{"~n1"}, -3 * time.Second},
			{"served in between", func() { reported(t, ctl, ref, cutOffFor(time.Second)) }, []string{"~n1"}, 49 * time.Second},
			{"served", func() { reported(t, ctl, ref, sessioncontroller.Report{Observed: true}) }, []string{"~n1"}, -1},
			{"cut off now", func() { reported(t, ctl, ref, cutOffFor(0)) }, []string{"~n1"}, 70 * time.Second},
			{"another boot", func() { register(t, ctl, node("n1", "2")) }, []string{"~n1"}, -1},
		} {
			step.do()
			lease, found, err := ctl.Get(t.Context(), n1.Key, 0)
			if err != nil || !found {
				t.Fatal(found, err)
			}
			want := time.Time{}
			if step.since != -1 {
				want = begin.Add(step.since)
			}
			if got := lease.CutOffTime; got.IsZero() != want.IsZero() || got.Sub(want).Abs() > time.Second {
				t.Errorf("%s: cut off since %v, want %v", step.what, got, want)
			}
			if diff := cmp.Diff(step.events, names(drain(t, sub))); diff != "" {
				t.Errorf("%s: events (-want +got):\n%s", step.what, diff)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

// Agents that report as much as they may do not fill the memory.
func TestReport_MemoryOfConditionsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := sessioncontroller.New(sessioncontroller.Config{Classes: classes, Shards: 4, Limit: 8, Logger: slog.New(slog.DiscardHandler)})
		defer run(t, ctl)()
		var large sessioncontroller.Report
		for i := range 16 {
			c := condition(fmt.Sprintf("C%02d", i), 1, 0)
			c.Message = strings.Repeat("x", 256)
			large.Conditions = append(large.Conditions, c)
		}
		var refs []session.Ref
		shown := func() (n int) {
			for i := range refs {
				if len(getLease(t, ctl, node(fmt.Sprintf("n%d", i), "1")).Conditions) > 0 {
					n++
				}
			}
			return n
		}
		for i := range 8 {
			refs = append(refs, register(t, ctl, node(fmt.Sprintf("n%d", i), "1"))[0].Ref)
			reported(t, ctl, refs[i], large)
		}
		if n := shown(); n != 1 {
			t.Errorf("the conditions of %d holders are kept, want 1 in 8 KiB", n)
		}
		sub := watch(t, ctl, nil)
		defer sub.Close()
		for _, ref := range refs {
			reported(t, ctl, ref, large)
		}
		if events := drain(t, sub); len(events) > 0 {
			t.Errorf("events %v of conditions that are not kept, want none", events)
		}
		reported(t, ctl, refs[0], reportOf())
		for _, ref := range refs[1:] {
			reported(t, ctl, ref, reportOf(condition("A", 1, 0)))
		}
		if n := shown(); n != 7 {
			t.Errorf("the conditions of %d holders are kept, want 7", n)
		}
	})
}

func TestRelease_ChecksTheETag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		n1 := node("n1", "1")
		register(t, ctl, n1)
		first := getLease(t, ctl, n1)
		register(t, ctl, node("n1", "2"))
		second := getLease(t, ctl, node("n1", "2"))
		if first.ETag() == second.ETag() {
			t.Errorf("two boots have the etag %s", first.ETag())
		}
		for _, c := range []struct {
			boot, etag string
			want       error
		}{
			{"1", "", sessioncontroller.ErrSuperseded},
			{"2", first.ETag(), sessioncontroller.ErrETagMismatch},
			{"2", second.ETag(), nil},
			{"2", "", nil},
		} {
			if err := ctl.CheckRelease(t.Context(), node("n1", c.boot), 0, c.etag); !errors.Is(err, c.want) {
				t.Errorf("check of boot %s with etag %q: %v, want %v", c.boot, c.etag, err, c.want)
			}
		}
		if _, err := ctl.BeginRelease(t.Context(), node("n1", "2"), 0, first.ETag()); !errors.Is(err, sessioncontroller.ErrETagMismatch) {
			t.Errorf("release with the etag of another boot: %v", err)
		}
		if err := ctl.CheckRelease(t.Context(), node("n2", "1"), 0, "x"); err != nil {
			t.Errorf("check without a session: %v", err)
		}
		var notHeld sessioncontroller.NotHeldError
		if err := ctl.CheckRelease(t.Context(), n1, 3, ""); !errors.As(err, &notHeld) || notHeld.Shard != 3 {
			t.Errorf("check in a shard that is not held: %v", err)
		}
	})
}

// Once a beat of a boot says when the holder was observed, its lease says that it is observed.
func TestReport_ObservedHoldsForTheBoot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		ref := register(t, ctl, node("n1", "1"))[0].Ref
		reported(t, ctl, ref, reportOf(condition("Disk", 1, 0)))
		if getLease(t, ctl, node("n1", "1")).Observed {
			t.Error("observed after a report without an age")
		}
		sub := watch(t, ctl, nil)
		defer sub.Close()
		drain(t, sub)
		reported(t, ctl, ref, sessioncontroller.Report{Observed: true})
		expectNames(t, "events after the first age", drain(t, sub), "~n1")
		reported(t, ctl, ref, sessioncontroller.Report{Observed: true})
		expectNames(t, "events after the second age", drain(t, sub))
		if !getLease(t, ctl, node("n1", "1")).Observed {
			t.Error("not observed after a report with an age")
		}
		register(t, ctl, node("n1", "1"))
		if !getLease(t, ctl, node("n1", "1")).Observed {
			t.Error("not observed after the same boot registered again")
		}
		register(t, ctl, node("n1", "2"))
		if getLease(t, ctl, node("n1", "2")).Observed {
			t.Error("another boot is observed before it says so")
		}
	})
}
