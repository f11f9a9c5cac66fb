package sessioncontroller_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

func TestWrites_StatusFollowsResults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		begin := time.Now()
		ref := register(t, ctl, node("a", "1"))[0].Ref

		job := startWrites(t, ctl)[0]
		if job.Namespace != "kube-node-lease" || job.Name != "a" || !job.RenewTime.Equal(begin) || job.Last.Exists() || job.Reason != writeback.First {
			t.Errorf("first job %+v", job)
		}
		if again := startWrites(t, ctl); again != nil {
			t.Errorf("returned twice: %+v", again)
		}
		finishWrite(t, ctl, job, sessioncontroller.WriteResult{Err: errors.New("no route to host")})
		want := sessioncontroller.WriteStatus{
			State: writeback.Retrying, LastError: "no route to host", Failures: 1, Due: begin.Add(200 * time.Millisecond),
		}
		if diff := cmp.Diff(want, getLease(t, ctl, node("a", "1")).Write); diff != "" {
			t.Errorf("after a failure (-want +got):\n%s", diff)
		}

		time.Sleep(200 * time.Millisecond)
		finishWrite(t, ctl, startWrites(t, ctl)[0], sessioncontroller.WriteResult{Err: fmt.Errorf("node %q: %w", "a", sessioncontroller.ErrNoOwner)})
		if got := getLease(t, ctl, node("a", "1")).Write; got.State != writeback.NoOwner || got.LastError != sessioncontroller.ErrNoOwner.Error() {
			t.Errorf("state %v with error %q, want NoOwner and its error", got.State, got.LastError)
		}

		time.Sleep(400 * time.Millisecond)
		finishWrite(t, ctl, startWrites(t, ctl)[0], sessioncontroller.WriteResult{Lease: leaseRecord("5", begin)})
		got := getLease(t, ctl, node("a", "1")).Write
		want = sessioncontroller.WriteStatus{
			State: writeback.Written, ResourceVersion: "5", RenewTime: begin, WriteTime: time.Now(),
			Reason: writeback.Renewal, Due: got.Due,
		}
		if diff := cmp.Diff(want, got); diff != "" || got.Due.Before(time.Now()) || got.Due.After(time.Now().Add(11*time.Second)) {
			t.Errorf("after a success (-want +got):\n%s", diff)
		}

		time.Sleep(11 * time.Second)
		beat(t, ctl, ref)
		job = startWrites(t, ctl)[0]
		if job.Reason != writeback.Renewal || job.Last.ResourceVersion() != "5" || !job.RenewTime.Equal(time.Now()) {
			t.Errorf("renewal %+v", job)
		}
		finishWrite(t, ctl, job, sessioncontroller.WriteResult{Lease: leaseRecord("6", job.RenewTime)})

		time.Sleep(9 * time.Second)
		beat(t, ctl, ref)
		if early := startWrites(t, ctl); early != nil {
			t.Errorf("renewed too early: %+v", early)
		}
		time.Sleep(2 * time.Second)
		if job = startWrites(t, ctl)[0]; !job.RenewTime.Equal(time.Now().Add(-2 * time.Second)) {
			t.Errorf("renewal %+v", job)
		}
	})
}

func TestFinishWrite_ResultForAnEarlierSessionIsDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, agent("x"))
		late := startWrites(t, ctl)[0]
		time.Sleep(10 * time.Minute)
		register(t, ctl, agent("y"))
		finishWrite(t, ctl, late, sessioncontroller.WriteResult{Lease: leaseRecord("5", time.Now())})
		if got := getLease(t, ctl, agent("y")).Write; got != (sessioncontroller.WriteStatus{State: writeback.Pending, Due: time.Now()}) {
			t.Errorf("the next session of the slot got the result: %+v", got)
		}
	})
}

func TestBeginRelease_WaitsForTheWriteInFlightAndPreventsNewOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		ref := register(t, ctl, node("a", "1"))[0].Ref
		job := startWrites(t, ctl)[0]
		got := make(chan *sessioncontroller.Release, 1)
		go func() { got <- beginRelease(t, ctl, node("a", "1")) }()
		synctest.Wait()
		if len(got) > 0 {
			t.Fatal("release began while a write was in flight")
		}
		finishWrite(t, ctl, job, sessioncontroller.WriteResult{Lease: leaseRecord("5", time.Now())})
		held := <-got
		if held.Namespace != "kube-node-lease" || held.Name != "a" {
			t.Errorf("release %+v", held)
		}
		time.Sleep(11 * time.Second)
		beat(t, ctl, ref)
		if jobs := startWrites(t, ctl); jobs != nil {
			t.Errorf("written during the release: %+v", jobs)
		}
		ctl.AbortRelease(held)
		if jobs := startWrites(t, ctl); len(jobs) != 1 {
			t.Errorf("%d jobs after the release was aborted, want 1", len(jobs))
		}
	})
}

func TestCompleteRelease_EndsTheSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"))
		sub := watch(t, ctl, nil)
		held := beginRelease(t, ctl, node("a", "1"))
		second := make(chan *sessioncontroller.Release, 1)
		go func() { second <- beginRelease(t, ctl, node("a", "1")) }()
		synctest.Wait()
		ctl.CompleteRelease(held)
		if got := <-second; got != nil {
			t.Errorf("a second release got %+v, want nil", got)
		}
		want := []change{{Type: sessioncontroller.Deleted, Name: "a"}}
		if diff := cmp.Diff(want, drain(t, sub)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestCompleteRelease_SessionOfANewerBootContinuesWithANewLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"))
		finishWrite(t, ctl, startWrites(t, ctl)[0], sessioncontroller.WriteResult{Lease: leaseRecord("5", time.Now())})
		held := beginRelease(t, ctl, node("a", "1"))
		register(t, ctl, node("a", "2"))
		if _, err := ctl.BeginRelease(t.Context(), node("a", "1"), 0, ""); !errors.Is(err, sessioncontroller.ErrSuperseded) {
			t.Errorf("error %v, want ErrSuperseded", err)
		}
		sub := watch(t, ctl, nil)
		ctl.CompleteRelease(held)
		want := []change{{Type: sessioncontroller.Modified, Name: "a", State: session.Alive, Write: writeback.Pending}}
		if diff := cmp.Diff(want, drain(t, sub)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if got := getLease(t, ctl, node("a", "2")).Write; got != (sessioncontroller.WriteStatus{State: writeback.Pending, Due: time.Now()}) {
			t.Errorf("write %+v, want no trace of the deleted Lease", got)
		}
		jobs := startWrites(t, ctl)
		if len(jobs) != 1 || jobs[0].Last.Exists() || jobs[0].Reason != writeback.First {
			t.Errorf("jobs %+v, want one first write", jobs)
		}
	})
}

func TestBeginRelease_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"))
		startWrites(t, ctl)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := ctl.BeginRelease(ctx, node("a", "1"), 0, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want DeadlineExceeded", err)
		}
	})
}
