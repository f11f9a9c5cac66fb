package sessioncontroller_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

func keys(names ...string) (all []session.Key) {
	for _, name := range names {
		all = append(all, node(name, "").Key)
	}
	return all
}

func expectProblems(t *testing.T, what string, ctl *sessioncontroller.Controller, want sessioncontroller.Problems) {
	t.Helper()
	time.Sleep(2 * time.Second)
	if diff := cmp.Diff(want, ctl.Problems()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestProblems_NamesLeasesThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		names := []string{"f", "a", "b", "g", "c", "d", "e"}
		finish := func(result func(name string) sessioncontroller.WriteResult) {
			for _, name := range names {
				register(t, ctl, node(name, "1"))
			}
			time.Sleep(11 * time.Second)
			for _, job := range startWrites(t, ctl) {
				finishWrite(t, ctl, job, result(job.Name))
			}
		}
		written := func(string) sessioncontroller.WriteResult {
			return sessioncontroller.WriteResult{Lease: leaseRecord("7", time.Now())}
		}
		failed := func(name string) sessioncontroller.WriteResult {
			return sessioncontroller.WriteResult{Err: fmt.Errorf("cannot write %s", name)}
		}
		finish(failed)
		expectProblems(t, "after one failure", ctl, sessioncontroller.Problems{})
		finish(failed)
		time.Sleep(2 * time.Second)
		first := ctl.Problems().Unwritten
		if first.Count != 7 || len(first.First) != 5 || first.Detail != "cannot write "+first.First[0].Name {
			t.Errorf("after two failures %+v, want seven, five of them named", first)
		}
		finish(func(name string) sessioncontroller.WriteResult {
			switch name {
			case "a":
				return failed(name)
			case "b":
				return sessioncontroller.WriteResult{Err: errors.Join(sessioncontroller.ErrNoOwner)}
			}
			return written(name)
		})
		expectProblems(t, "after some were written", ctl, sessioncontroller.Problems{
			Unwritten: sessioncontroller.Affected{Count: 1, First: keys("a"), Detail: "cannot write a"},
			Unowned:   sessioncontroller.Affected{Count: 1, First: keys("b")},
		})
		ctl.CompleteRelease(beginRelease(t, ctl, node("a", "1")))
		ctl.CompleteRelease(beginRelease(t, ctl, node("b", "1")))
		expectProblems(t, "after their sessions ended", ctl, sessioncontroller.Problems{})
	})
}

func TestProblems_NamesDuplicatesWhileTheyBeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"))
		register(t, ctl, node("a", "2"))
		expectProblems(t, "after a takeover", ctl, sessioncontroller.Problems{})
		register(t, ctl, node("a", "1"))
		register(t, ctl, node("a", "1"))
		expectProblems(t, "while both beat", ctl, sessioncontroller.Problems{
			Duplicates: sessioncontroller.Affected{Count: 1, First: keys("a"), Detail: "1"},
		})
		sub := watch(t, ctl, nil)
		defer sub.Close()
		if d := getLease(t, ctl, node("a", "2")).Duplicate; d == nil || d.Boot != "1" {
			t.Errorf("duplicate %+v, want boot 1", d)
		}
		for range 17 {
			time.Sleep(10 * time.Second)
			register(t, ctl, node("a", "2"))
		}
		expectProblems(t, "after the other one stopped", ctl, sessioncontroller.Problems{})
		if d := getLease(t, ctl, node("a", "2")).Duplicate; d != nil {
			t.Errorf("duplicate %+v after it stopped, want none", d)
		}
		expectNames(t, "events", drain(t, sub), "~a")
	})
}
