package sessioncontroller_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

func TestAdopt_AdoptedLeasesAreWrittenWhenTheyAreDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newAdoptingController()
		defer run(t, ctl)()
		if s := beginAdoption(t, ctl); s != nil {
			t.Fatal("adoption began although further shards may follow")
		}
		register(t, ctl, node("early", "1"), node("none", "1"))
		time.Sleep(time.Second)
		s := beginAdoption(t, ctl)
		if s == nil || len(s.Namespaces) != 2 {
			t.Fatalf("adoption %+v, want one of two namespaces", s)
		}
		key := func(name string) session.Key { return session.Key{Name: name} }
		err := ctl.Adopt(t.Context(), []sessioncontroller.ListedLease{
			{Key: key("early"), Lease: existingLease("early", 10*time.Second)}, {Key: key("late"), Lease: existingLease("late", 10*time.Second)},
			{Key: key("stranger"), Lease: existingLease("another-holder", 10*time.Second)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if jobs := startWrites(t, ctl); jobs != nil {
			t.Errorf("written before the adoption finished: %+v", jobs)
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
			t.Errorf("written at once: %v, want the holders without a Lease", first)
		}
		for _, name := range []string{"early", "late"} {
			got := getLease(t, ctl, node(name, "1")).Write
			if got.ResourceVersion != "5" || got.Reason != writeback.Renewal || got.Due.After(time.Now().Add(22*time.Second)) {
				t.Errorf("%s: %+v, want a renewal of the adopted Lease within 22 s", name, got)
			}
		}
		if ctl.AdoptionPending() || beginAdoption(t, ctl) != nil {
			t.Error("a finished adoption is pending again")
		}
	})
}

func TestStartWrites_WaitForAdoptionIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newAdoptingController()
		defer run(t, ctl)()
		register(t, ctl, node("a", "1"))
		time.Sleep(4500 * time.Millisecond)
		if jobs := startWrites(t, ctl); jobs != nil {
			t.Errorf("written before adoption: %+v", jobs)
		}
		time.Sleep(time.Second)
		if jobs := startWrites(t, ctl); len(jobs) != 1 || !ctl.AdoptionPending() {
			t.Errorf("%d jobs, pending %t; want one, and adoption still pending", len(jobs), ctl.AdoptionPending())
		}
	})
}

func TestCheckAbsent_NeedsAHeldShardWithoutTheHolder(t *testing.T) {
	t.Parallel()
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
			t.Error("want b absent, a present, and b not absent for a minute")
		}
		time.Sleep(time.Minute)
		if !absent("b", 0, time.Minute) {
			t.Error("b is not absent after a minute without a beat")
		}
		held, err := ctl.CheckAbsent(t.Context(), session.Key{Name: "b"}, 1, 0)
		if held != nil || !errors.Is(err, sessioncontroller.NotHeldError{Shard: 1}) {
			t.Errorf("%v, error %v; want a NotKeptError", held, err)
		}
	})
}

func TestFinishAdoption_EndsTheWaitOfAllSessions(t *testing.T) {
	t.Parallel()
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
			t.Fatalf("%d Leases are written before adoption, error %v", len(jobs), err)
		}
		if err := ctl.FinishAdoption(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if jobs, err := ctl.StartWrites(t.Context(), holders); err != nil || len(jobs) != holders || ctl.AdoptionPending() {
			t.Errorf("%d of %d Leases are written after the adoption, error %v", len(jobs), holders, err)
		}
	})
}
