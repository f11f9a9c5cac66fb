package sessioncontroller_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// keepSilent has shard 1 kept, with those of whom it is known that they were silent.
func holdWithSilences(t *testing.T, ctl *sessioncontroller.Controller, silences ...session.Silence) (endTerm func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- ctl.RunShard(heldshards.New(ctx, 1, 9), silences...) }()
	for !isHeld(t, ctl, 1) {
		runtime.Gosched()
	}
	return func() {
		cancel()
		if err := <-kept; err != nil {
			t.Error(err)
		}
	}
}

func stateOf(t *testing.T, ctl *sessioncontroller.Controller, name string) session.State {
	t.Helper()
	lease, _, err := ctl.Get(t.Context(), node(name, "").Key, 1)
	if err != nil {
		t.Fatal(err)
	}
	return lease.State
}

// A shard changes hands: who beats has a whole grace, who was silent before has what was left of it, and who was dead stays so.
func TestKeep_TakeoverGrantsAGraceLessTheSilenceThatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		defer holdWithSilences(t, ctl,
			session.Silence{Holder: node("waning", "1"), For: 30 * time.Second},
			session.Silence{Holder: node("dead", "1"), For: 10 * time.Minute},
			session.Silence{Holder: node("back", "1"), For: 39 * time.Second},
			session.Silence{Holder: node("forgotten", "1"), For: 24 * time.Hour},
		)()
		living := registerIn(t, ctl, 1, node("living", "1"))
		if got := registerIn(t, ctl, 1, node("back", "1")).Outcome; got != session.Recovered {
			t.Errorf("one that beats again: outcome %v, want recovered", got)
		}
		for _, step := range []struct {
			after time.Duration
			want  map[string]session.State
		}{
			{want: map[string]session.State{
				"living": session.Alive, "back": session.Alive, "waning": session.Suspect, "dead": session.Expired, "forgotten": session.Gone,
			}},
			{after: 10*time.Second + 200*time.Millisecond, want: map[string]session.State{
				"living": session.Alive, "back": session.Alive, "waning": session.Expired, "dead": session.Expired,
			}},
			{after: 29 * time.Second, want: map[string]session.State{"living": session.Suspect, "back": session.Suspect}},
			{after: time.Second, want: map[string]session.State{"living": session.Expired, "back": session.Expired}},
		} {
			time.Sleep(step.after)
			for name, want := range step.want {
				if got := stateOf(t, ctl, name); got != want {
					t.Errorf("%s is in state %v, want %v", name, got, want)
				}
			}
		}
		if got := ctl.Counts(); got != (session.Counts{Expired: 4}) {
			t.Errorf("counts %+v, want 4 expired; living is %+v", got, living)
		}
	})
}

func TestBeat_GoesPastTheOwnerWhileTheHolderIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		ref := register(t, ctl, node("a", "1"))[0].Ref
		for sequence := range uint64(10) {
			time.Sleep(20 * time.Second)
			now, running := ctl.Now()
			if !running || !ctl.Beat(now, ref, sequence) {
				t.Fatalf("beat %d went to the owner", sequence)
			}
		}
		if got := ctl.Counts(); got != (session.Counts{Alive: 1}) {
			t.Errorf("counts %+v after beats in time, want one alive", got)
		}
		time.Sleep(26 * time.Second)
		now, _ := ctl.Now()
		if ctl.Beat(now, ref, 11) {
			t.Error("the beat of a suspect went past the owner")
		}
		if got := beat(t, ctl, ref); got.Renewed != 1 {
			t.Errorf("the owner did not take it: %+v", got)
		}
		time.Sleep(39 * time.Second)
		if got := ctl.Counts(); got != (session.Counts{Suspect: 1}) {
			t.Errorf("counts %+v 39 s after the last beat, want one suspect", got)
		}
	})
}

func TestExchange_TwoBootsThatBeatAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
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
		expectNames(t, "an episode", drain(t, sub), "~a")
		lease, _, err := ctl.Get(t.Context(), node("a", "").Key, 0)
		want := &sessioncontroller.Duplicate{Boot: "old", RejectTime: time.Now(), Rejections: 3}
		if diff := cmp.Diff(want, lease.Duplicate, cmpopts.EquateApproxTime(time.Millisecond)); err != nil || diff != "" {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
		if got := ctl.Duplicates(); got != 1 {
			t.Errorf("%d episodes, want 1", got)
		}
	})
}

// The next term of a shard may begin before the one before has been put away.
func TestKeep_NextTenureWaitsForTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctl := newController()
		defer run(t, ctl)()
		endTerm := holdShard(t, ctl, 1, 9)
		registerIn(t, ctl, 1, node("a", "1"))
		ctx, cancel := context.WithCancel(t.Context())
		kept := make(chan error, 1)
		go func() { kept <- ctl.RunShard(heldshards.New(ctx, 1, 11)) }()
		time.Sleep(time.Second)
		endTerm()
		time.Sleep(time.Second)
		if got := registerIn(t, ctl, 1, node("a", "1")); got.Outcome != session.Opened || got.Grant.Epoch != 11 {
			t.Errorf("met %+v, want another session at epoch 11", got)
		}
		cancel()
		if err := <-kept; err != nil {
			t.Error(err)
		}
	})
}
