package sessioncontroller_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

func object(version string, renewed time.Time) writeback.LeaseRecord {
	return writeback.NewLeaseRecord(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: version},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: renewed}},
	})
}

func start(t testing.TB, k *sessioncontroller.Controller) []sessioncontroller.WriteJob {
	t.Helper()
	jobs, err := k.StartWrites(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	return jobs
}

func finish(t testing.TB, k *sessioncontroller.Controller, job sessioncontroller.WriteJob, result sessioncontroller.WriteResult) {
	t.Helper()
	if err := k.FinishWrite(job, result); err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, k *sessioncontroller.Controller, h session.Holder) sessioncontroller.Lease {
	t.Helper()
	lease, found, err := k.Get(t.Context(), h.Key, 0)
	if err != nil || !found {
		t.Fatalf("get %s: found %t, error %v", h.Key.Name, found, err)
	}
	return lease
}

func TestWrites_GoThroughTheirWholeLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		begin := time.Now()
		ref := introduce(t, k, node("a", "1"))[0].Ref

		job := start(t, k)[0]
		if job.Namespace != "kube-node-lease" || job.Name != "a" || !job.RenewTime.Equal(begin) || job.Last.Exists() || job.Reason != writeback.First {
			t.Errorf("first job %+v", job)
		}
		if again := start(t, k); again != nil {
			t.Errorf("handed out twice: %+v", again)
		}
		finish(t, k, job, sessioncontroller.WriteResult{Err: errors.New("no route to host")})
		want := sessioncontroller.WriteStatus{
			State: writeback.Retrying, LastError: "no route to host", Failures: 1, Due: begin.Add(200 * time.Millisecond),
		}
		if diff := cmp.Diff(want, get(t, k, node("a", "1")).Write); diff != "" {
			t.Errorf("after a failure (-want +got):\n%s", diff)
		}

		time.Sleep(200 * time.Millisecond)
		finish(t, k, start(t, k)[0], sessioncontroller.WriteResult{Err: fmt.Errorf("node %q: %w", "a", sessioncontroller.ErrNoOwner)})
		if got := get(t, k, node("a", "1")).Write; got.State != writeback.NoOwner || got.LastError != sessioncontroller.ErrNoOwner.Error() {
			t.Errorf("state %v with error %q, want NoOwner and what it means", got.State, got.LastError)
		}

		time.Sleep(400 * time.Millisecond)
		finish(t, k, start(t, k)[0], sessioncontroller.WriteResult{Lease: object("5", begin)})
		got := get(t, k, node("a", "1")).Write
		want = sessioncontroller.WriteStatus{
			State: writeback.Written, ResourceVersion: "5", RenewTime: begin, WriteTime: time.Now(),
			Reason: writeback.Renewal, Due: got.Due,
		}
		if diff := cmp.Diff(want, got); diff != "" || got.Due.Before(time.Now()) || got.Due.After(time.Now().Add(11*time.Second)) {
			t.Errorf("after a success (-want +got):\n%s", diff)
		}

		time.Sleep(11 * time.Second)
		beat(t, k, ref)
		job = start(t, k)[0]
		if job.Reason != writeback.Renewal || job.Last.ResourceVersion() != "5" || !job.RenewTime.Equal(time.Now()) {
			t.Errorf("renewal %+v", job)
		}
		finish(t, k, job, sessioncontroller.WriteResult{Lease: object("6", job.RenewTime)})

		time.Sleep(9 * time.Second)
		beat(t, k, ref)
		if early := start(t, k); early != nil {
			t.Errorf("renewed before the interval has passed: %+v", early)
		}
		time.Sleep(2 * time.Second)
		if job = start(t, k)[0]; !job.RenewTime.Equal(time.Now().Add(-2 * time.Second)) {
			t.Errorf("renewal %+v", job)
		}
	})
}

func TestFinish_ForgottenHoldersWriteIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		introduce(t, k, agent("x"))
		late := start(t, k)[0]
		time.Sleep(10 * time.Minute)
		introduce(t, k, agent("y"))
		finish(t, k, late, sessioncontroller.WriteResult{Lease: object("5", time.Now())})
		if got := get(t, k, agent("y")).Write; got != (sessioncontroller.WriteStatus{State: writeback.Pending, Due: time.Now()}) {
			t.Errorf("the next holder of the slot got the write: %+v", got)
		}
	})
}

func hold(t testing.TB, k *sessioncontroller.Controller, h session.Holder) *sessioncontroller.Release {
	t.Helper()
	held, err := k.BeginRelease(t.Context(), h, 0)
	if err != nil {
		t.Fatal(err)
	}
	return held
}

func TestHold_WaitsForTheWriteInFlightAndKeepsNewOnesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		ref := introduce(t, k, node("a", "1"))[0].Ref
		job := start(t, k)[0]
		got := make(chan *sessioncontroller.Release, 1)
		go func() { got <- hold(t, k, node("a", "1")) }()
		synctest.Wait()
		if len(got) > 0 {
			t.Fatal("held while a write is in flight")
		}
		finish(t, k, job, sessioncontroller.WriteResult{Lease: object("5", time.Now())})
		held := <-got
		if held.Namespace != "kube-node-lease" || held.Name != "a" {
			t.Errorf("held %+v", held)
		}
		time.Sleep(11 * time.Second)
		beat(t, k, ref)
		if jobs := start(t, k); jobs != nil {
			t.Errorf("written while held: %+v", jobs)
		}
		k.AbortRelease(held)
		if jobs := start(t, k); len(jobs) != 1 {
			t.Errorf("%d jobs after it was let go, want 1", len(jobs))
		}
	})
}

func TestDrop_EndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		introduce(t, k, node("a", "1"))
		sub := watch(t, k, nil)
		held := hold(t, k, node("a", "1"))
		second := make(chan *sessioncontroller.Release, 1)
		go func() { second <- hold(t, k, node("a", "1")) }()
		synctest.Wait()
		k.CompleteRelease(held)
		if got := <-second; got != nil {
			t.Errorf("a second release held %+v, want nothing left to hold", got)
		}
		want := []change{{Type: sessioncontroller.Deleted, Name: "a", Write: writeback.Pending}}
		if diff := cmp.Diff(want, drain(t, sub)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestDrop_SessionOfANewerBootGoesOnAndIsWrittenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		introduce(t, k, node("a", "1"))
		finish(t, k, start(t, k)[0], sessioncontroller.WriteResult{Lease: object("5", time.Now())})
		held := hold(t, k, node("a", "1"))
		introduce(t, k, node("a", "2"))
		if _, err := k.BeginRelease(t.Context(), node("a", "1"), 0); !errors.Is(err, sessioncontroller.ErrSuperseded) {
			t.Errorf("error %v, want ErrSuperseded", err)
		}
		sub := watch(t, k, nil)
		k.CompleteRelease(held)
		want := []change{{Type: sessioncontroller.Modified, Name: "a", State: session.Alive, Write: writeback.Pending}}
		if diff := cmp.Diff(want, drain(t, sub)); diff != "" {
			t.Errorf("told the watchers (-want +got):\n%s", diff)
		}
		if got := get(t, k, node("a", "2")).Write; got != (sessioncontroller.WriteStatus{State: writeback.Pending, Due: time.Now()}) {
			t.Errorf("write %+v, want nothing of the object that is gone", got)
		}
		jobs := start(t, k)
		if len(jobs) != 1 || jobs[0].Last.Exists() || jobs[0].Reason != writeback.First {
			t.Errorf("jobs %+v, want one first write", jobs)
		}
	})
}

func TestHold_GivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper()
		defer run(t, k)()
		introduce(t, k, node("a", "1"))
		start(t, k)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := k.BeginRelease(ctx, node("a", "1"), 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want DeadlineExceeded", err)
		}
	})
}
