package sessioncontroller_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// surveyed is a keeper to which somebody tells what there was before.
func newAdoptingController() *sessioncontroller.Controller {
	return sessioncontroller.New(sessioncontroller.Config{Classes: classes, Shards: 4, Limit: 10_000, AdoptLeases: true, Logger: slog.New(slog.DiscardHandler)})
}

// lease is one of a holder that was renewed some time ago.
func existingLease(holder string, ago time.Duration) writeback.LeaseRecord {
	return writeback.NewLeaseRecord(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: holder, ResourceVersion: "5"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: time.Now().Add(-ago)},
		},
	})
}

func beginAdoption(t *testing.T, ctl *sessioncontroller.Controller) *sessioncontroller.Adoption {
	t.Helper()
	s, err := ctl.BeginAdoption(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSurvey_FoundObjectsAreWrittenWhenTheirDurationAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newAdoptingController()
		defer run(t, ctl)()
		if s := beginAdoption(t, ctl); s != nil {
			t.Fatal("more shards may come, and it is read already")
		}
		register(t, ctl, node("early", "1"), node("none", "1"))
		time.Sleep(time.Second)
		s := beginAdoption(t, ctl)
		if s == nil || len(s.Namespaces) != 2 {
			t.Fatalf("survey %+v, want one of two namespaces", s)
		}
		key := func(name string) session.Key { return session.Key{Name: name} }
		err := ctl.Adopt(t.Context(), []sessioncontroller.ExistingLease{
			{Key: key("early"), Lease: existingLease("early", 10*time.Second)}, {Key: key("late"), Lease: existingLease("late", 10*time.Second)},
			{Key: key("stranger"), Lease: existingLease("somebody else", 10*time.Second)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if jobs := startWrites(t, ctl); jobs != nil {
			t.Errorf("written before all has been read: %+v", jobs)
		}
		if err := ctl.FinishAdoption(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		register(t, ctl, node("late", "1"), node("stranger", "1"))
		first := map[string]writeback.Reason{}
		for _, job := range startWrites(t, ctl) {
			first[job.Name] = job.Reason
		}
		if len(first) != 2 || first["none"] != writeback.First || first["stranger"] != writeback.First {
			t.Errorf("written at once: %v, want those of whom nothing was found", first)
		}
		for _, name := range []string{"early", "late"} {
			got := getLease(t, ctl, node(name, "1")).Write
			if got.ResourceVersion != "5" || got.Reason != writeback.Renewal || got.Due.After(time.Now().Add(22*time.Second)) {
				t.Errorf("%s: %+v, want a renewal within 22 s of what was found", name, got)
			}
		}
		if ctl.AdoptionPending() || beginAdoption(t, ctl) != nil {
			t.Error("what has been read is to be read again")
		}
	})
}

func TestSurvey_ThatNobodyMakesHoldsNothingUpForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newAdoptingController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"))
		time.Sleep(4500 * time.Millisecond)
		if jobs := startWrites(t, ctl); jobs != nil {
			t.Errorf("written unseen: %+v", jobs)
		}
		time.Sleep(time.Second)
		if jobs := startWrites(t, ctl); len(jobs) != 1 || !ctl.AdoptionPending() {
			t.Errorf("%d jobs, unread %t; want one, and still to be read", len(jobs), ctl.AdoptionPending())
		}
	})
}

func TestAbsent_IsWhoWasNotHeardInATermOfSomeLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"))
		absent := func(name string, shard int, kept time.Duration) bool {
			held, err := ctl.CheckAbsent(t.Context(), session.Key{Name: name}, shard, kept)
			if err != nil {
				t.Fatal(err)
			}
			return held != nil && held.ID() == shard
		}
		if absent("a", 0, 0) || !absent("b", 0, 0) || absent("b", 0, time.Minute) {
			t.Error("want b to be absent for now, and a not")
		}
		time.Sleep(time.Minute)
		if !absent("b", 0, time.Minute) {
			t.Error("b was not heard for a minute, and is not absent")
		}
		held, err := ctl.CheckAbsent(t.Context(), session.Key{Name: "b"}, 1, 0)
		if held != nil || !errors.Is(err, sessioncontroller.NotHeldError{Shard: 1}) {
			t.Errorf("%v, error %v; want a NotKeptError", held, err)
		}
	})
}

func TestSurvey_EndReachesAllOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newAdoptingController()
		defer run(t, ctl)()
		const holders = 9000
		all := make([]session.Holder, holders)
		for i := range all {
			all[i] = node(fmt.Sprintf("n-%d", i), "1")
		}
		register(t, ctl, all...)
		time.Sleep(time.Second)
		s := beginAdoption(t, ctl)
		if jobs, err := ctl.StartWrites(t.Context(), holders); err != nil || len(jobs) != 0 {
			t.Fatalf("%d objects are written unseen, error %v", len(jobs), err)
		}
		if err := ctl.FinishAdoption(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if jobs, err := ctl.StartWrites(t.Context(), holders); err != nil || len(jobs) != holders || ctl.AdoptionPending() {
			t.Errorf("%d of %d objects are written after the survey, error %v", len(jobs), holders, err)
		}
	})
}
