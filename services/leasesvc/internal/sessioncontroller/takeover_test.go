package sessioncontroller_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// After a takeover, a beating holder has its full grace period, a silent one the rest of it, and an
// expired one stays expired.
func TestRunShard_TakeoverGrantsTheGraceLessTheKnownSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		defer holdShard(t, ctl, 1, 9,
			session.Silence{Holder: node("suspect", "1"), For: 30 * time.Second},
			session.Silence{Holder: node("expired", "1"), For: 10 * time.Minute},
			session.Silence{Holder: node("recovered", "1"), For: 39 * time.Second},
			session.Silence{Holder: node("forgotten", "1"), For: 24 * time.Hour},
		)()
		alive := registerIn(t, ctl, 1, node("alive", "1"))
		if got := registerIn(t, ctl, 1, node("recovered", "1")).Outcome; got != session.Recovered {
			t.Errorf("beat of a silent holder: outcome %v, want recovered", got)
		}
		for _, step := range []struct {
			after time.Duration
			want  map[string]session.State
		}{
			{want: map[string]session.State{
				"alive": session.Alive, "recovered": session.Alive, "suspect": session.Suspect, "expired": session.Expired, "forgotten": session.Gone,
			}},
			{after: 10*time.Second + 200*time.Millisecond, want: map[string]session.State{
				"alive": session.Alive, "recovered": session.Alive, "suspect": session.Expired, "expired": session.Expired,
			}},
			{after: 29 * time.Second, want: map[string]session.State{"alive": session.Suspect, "recovered": session.Suspect}},
			{after: time.Second, want: map[string]session.State{"alive": session.Expired, "recovered": session.Expired}},
		} {
			time.Sleep(step.after)
			for name, want := range step.want {
				if got := stateOf(t, ctl, name); got != want {
					t.Errorf("%s is in state %v, want %v", name, got, want)
				}
			}
		}
		if got := ctl.Counts(); got != (session.Counts{Expired: 4}) {
			t.Errorf("counts %+v, want 4 expired; alive is %+v", got, alive)
		}
	})
}

func TestBeat_RenewsAliveSessionsWithoutTheOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		ref := register(t, ctl, node("a", "1"))[0].Ref
		for sequence := range uint64(10) {
			time.Sleep(20 * time.Second)
			now, running := ctl.Now()
			if !running || !ctl.Beat(now, ref, sequence) {
				t.Fatalf("beat %d was not accepted", sequence)
			}
		}
		if got := ctl.Counts(); got != (session.Counts{Alive: 1}) {
			t.Errorf("counts %+v after beats, want one alive", got)
		}
		time.Sleep(26 * time.Second)
		now, _ := ctl.Now()
		if ctl.Beat(now, ref, 11) {
			t.Error("Beat renewed a Suspect session")
		}
		if got := beat(t, ctl, ref); got.Renewed != 1 {
			t.Errorf("Process did not renew it: %+v", got)
		}
		time.Sleep(39 * time.Second)
		if got := ctl.Counts(); got != (session.Counts{Suspect: 1}) {
			t.Errorf("counts %+v 39 s after the last beat, want one suspect", got)
		}
	})
}

func TestProcess_DuplicateBootIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := decisions.NewLog()
		ctl := newRecordingController(log)
		defer run(t, ctl)()
		sub := watch(t, ctl, nil)
		defer sub.Close()
		register(t, ctl, node("a", "old"))
		register(t, ctl, node("a", "new"))
		drain(t, sub)
		for range 3 {
			if got := register(t, ctl, node("a", "old"))[0].Outcome; got != session.Superseded {
				t.Errorf("outcome %v, want superseded", got)
			}
		}
		expectNames(t, "one episode", drain(t, sub), "~a")
		lease, _, err := ctl.Get(t.Context(), node("a", "").Key, 0)
		want := &sessioncontroller.Duplicate{Boot: "old", LastRejectionTime: time.Now(), Rejections: 3}
		if diff := cmp.Diff(want, lease.Duplicate, cmpopts.EquateApproxTime(time.Millisecond)); err != nil || diff != "" {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
		if got := ctl.Duplicates(); got != 1 {
			t.Errorf("%d episodes, want 1", got)
		}
		if diff := cmp.Diff([]string{"LEASE_DUPLICATED a"}, testkit.Decisions(log)); diff != "" {
			t.Errorf("decisions (-want +got):\n%s", diff)
		}
	})
}

// The next term of a shard may begin before the sessions of the previous term are dropped.
func TestRunShard_WaitsForThePreviousTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		endTerm := holdShard(t, ctl, 1, 9)
		registerIn(t, ctl, 1, node("a", "1"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ctl.RunShard(sessioncontroller.NewHeldShard(ctx, 1, 11)) }()
		time.Sleep(time.Second)
		endTerm()
		time.Sleep(time.Second)
		if got := registerIn(t, ctl, 1, node("a", "1")); got.Outcome != session.Opened || got.Grant.Epoch != 11 {
			t.Errorf("result %+v, want a new session at epoch 11", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
