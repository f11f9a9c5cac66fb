package checkpoint_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

func rules() map[string]checkpoint.Rule { return map[string]checkpoint.Rule{"node": nodeRule()} }

// fixture is a Tracker with the stored checkpoint of its shard.
type fixture struct {
	t       *testing.T
	tracker checkpoint.Tracker
	now     monotonic.Instant
	value   []byte // nil if nothing is stored
	writes  int
	bytes   int
}

func newFixture(t *testing.T) *fixture {
	return &fixture{t: t, tracker: checkpoint.NewTracker(rules(), true)}
}

// look plans and applies the plan.
func (f *fixture) look(silent ...checkpoint.Entry) checkpoint.Action {
	f.t.Helper()
	given := slices.Clone(silent)
	plan := f.tracker.Plan(f.now, silent)
	if !slices.Equal(given, silent) {
		f.t.Fatalf("Plan changed its argument from %v to %v", given, silent)
	}
	switch plan.Action {
	case checkpoint.Put:
		f.value = plan.Value
		f.writes, f.bytes = f.writes+1, f.bytes+len(plan.Value)
	case checkpoint.Delete:
		f.value = nil
		f.writes++
	}
	f.tracker = f.tracker.Applied(f.now, plan)
	if again := f.tracker.Plan(f.now, silent); again.Action != checkpoint.None {
		f.t.Fatalf("planning again after action %v yields %v", plan.Action, again.Action)
	}
	return plan.Action
}

func (f *fixture) stored() []checkpoint.Entry {
	f.t.Helper()
	if f.value == nil {
		return nil
	}
	entries, err := checkpoint.Decode(f.value)
	if err != nil {
		f.t.Fatal(err)
	}
	return entries
}

func (f *fixture) expect(what string, verb, want checkpoint.Action, stored ...checkpoint.Entry) {
	f.t.Helper()
	if verb != want {
		f.t.Errorf("%s: action %d, want %d", what, verb, want)
	}
	if diff := cmp.Diff(stored, f.stored()); diff != "" {
		f.t.Errorf("%s: stored (-want +got):\n%s", what, diff)
	}
}

func TestTracker_StoresSilencesAndRemovesThemAtOnce(t *testing.T) {
	f := newFixture(t)
	f.expect("no silent holder", f.look(), checkpoint.None)
	f.expect("not suspect yet", f.look(silent("n1", 8*time.Second)), checkpoint.None)
	one := silent("n1", 13*time.Second)
	f.expect("suspect", f.look(one), checkpoint.Put, one)

	f.now = f.now.Add(time.Second)
	f.expect("still silent", f.look(silent("n1", 14*time.Second)), checkpoint.None, one)
	f.expect("second holder waits", f.look(silent("n1", 14*time.Second), silent("n2", 13*time.Second)), checkpoint.None, one)
	f.now = f.now.Add(2 * time.Second)
	both := []checkpoint.Entry{silent("n1", 16*time.Second), silent("n2", 15*time.Second)}
	f.expect("second holder is written", f.look(both...), checkpoint.Put, both...)

	f.now = f.now.Add(time.Second)
	two := silent("n2", 16*time.Second)
	f.expect("n1 has beaten", f.look(two), checkpoint.Put, two)
	f.now = f.now.Add(time.Second / 2)
	f.expect("n2 has beaten", f.look(), checkpoint.Delete)
	f.expect("no change", f.look(), checkpoint.None)
}

func TestTracker_ExpiredHoldersAreRefreshed(t *testing.T) {
	f := newFixture(t)
	f.look(silent("n1", 13*time.Second))
	f.now = f.now.Add(10 * time.Second)
	f.expect("expired", f.look(silent("n1", 23*time.Second)), checkpoint.None, silent("n1", 13*time.Second))
	f.now = f.now.Add(7 * time.Second)
	f.expect("expired for MinGrace", f.look(silent("n1", 30*time.Second)), checkpoint.Put, silent("n1", 30*time.Second))
	f.now = f.now.Add(59 * time.Second)
	f.expect("less than a minute later", f.look(silent("n1", 89*time.Second)), checkpoint.None, silent("n1", 30*time.Second))
	f.now = f.now.Add(time.Second)
	f.expect("a minute later", f.look(silent("n1", 90*time.Second)), checkpoint.Put, silent("n1", 90*time.Second))
	f.now = f.now.Add(time.Hour)
	f.expect("session gone", f.look(), checkpoint.Delete)
}

// While a silence grows, and the next replica would count more of it, it is brought up to date as
// seldom as other writes.
func TestTracker_GrowingSilencesAreRefreshed(t *testing.T) {
	f := newFixture(t)
	rule := nodeRule()
	rule.TTL = time.Minute
	f.tracker = checkpoint.NewTracker(map[string]checkpoint.Rule{"node": rule}, true)
	at := func(seconds int) checkpoint.Entry { return silent("n1", time.Duration(seconds)*time.Second) }
	f.expect("suspect", f.look(at(13)), checkpoint.Put, at(13))
	for seconds := 14; seconds < 70; seconds++ {
		f.now = f.now.Add(time.Second)
		f.look(at(seconds))
	}
	// 13 s, then every 3 s up to 50 s, which leave MinGrace: a longer silence counts no more.
	if want := 13; f.writes != want {
		t.Errorf("%d writes, want %d", f.writes, want)
	}
	f.expect("the next replica leaves MinGrace", f.look(at(69)), checkpoint.None, at(49))
	f.now = f.now.Add(time.Second)
	f.expect("expired for MinGrace", f.look(at(70)), checkpoint.Put, at(70))
}

// A holder may beat and fall silent again between two looks, under the same boot or another.
func TestTracker_NewSilenceReplacesTheOldOne(t *testing.T) {
	for what, next := range map[string]checkpoint.Entry{
		"a shorter silence": silent("n1", 14*time.Second),
		"another boot":      {Class: "node", Name: "n1", Boot: "b-2", Silence: 2 * time.Hour},
	} {
		f := newFixture(t)
		f.look(silent("n1", time.Hour))
		f.now = f.now.Add(2 * time.Second)
		f.expect(what, f.look(next), checkpoint.Put, next)
	}
}

func TestTracker_UntrustedContentIsReplaced(t *testing.T) {
	for what, tracker := range map[string]checkpoint.Tracker{
		"of another replica": checkpoint.NewTracker(rules(), false),
		"after a failure":    checkpoint.NewTracker(rules(), true).Unconfirmed(0, checkpoint.Plan{Action: checkpoint.Delete}),
	} {
		f := newFixture(t)
		f.tracker, f.value = tracker, []byte("something")
		f.expect(what, f.look(), checkpoint.Delete)
		f.tracker, f.value = tracker, []byte("something")
		f.expect(what, f.look(silent("n1", time.Minute)), checkpoint.Put, silent("n1", time.Minute))
	}
	if got := checkpoint.NewTracker(rules(), true).Unconfirmed(0, checkpoint.Plan{}).Plan(0, nil).Action; got != checkpoint.None {
		t.Errorf("an unconfirmed plan without a change: action %d", got)
	}
}

func TestTracker_UnknownClassesAreNotStored(t *testing.T) {
	f := newFixture(t)
	f.expect("unknown", f.look(checkpoint.Entry{Class: "removed", Name: "n1", Boot: "1", Silence: time.Hour}), checkpoint.None)
}

func TestTracker_ShortestSilencesAreOmittedIfTheyDoNotFit(t *testing.T) {
	var many []checkpoint.Entry
	for i := range 20_000 {
		many = append(many, silent(fmt.Sprintf("a-rather-long-name-of-a-node-%05d.example.com", i), time.Minute+time.Duration(i)*time.Second))
	}
	plan := checkpoint.NewTracker(rules(), true).Plan(0, many)
	if len(plan.Value) == 0 || len(plan.Value) > checkpoint.MaxBytes {
		t.Fatalf("%d bytes", len(plan.Value))
	}
	got, err := checkpoint.Decode(plan.Value)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Omitted == 0 || len(got)+plan.Omitted != len(many) {
		t.Errorf("%d stored and %d omitted of %d", len(got), plan.Omitted, len(many))
	}
	if want := many[plan.Omitted:]; !cmp.Equal(want, got) {
		t.Errorf("stored are not the %d longest silences", len(got))
	}
}

// Holders beat at random and are looked at every second. The stored silences are true after each
// look, and the write rate is bounded.
func TestTracker_IsTrueAfterEachLookWithinItsWriteRate(t *testing.T) {
	boot := strings.Repeat("b", 64)
	for seed := range uint64(7) {
		random := rand.New(rand.NewPCG(seed, 7))
		f := newFixture(t)
		holders := 10 << seed
		lastBeat := make([]monotonic.Instant, holders)
		names, places := make([]string, holders), map[string]int{}
		for i := range names {
			names[i] = fmt.Sprintf("node-%04d", i)
			places[names[i]] = i
		}
		for range 200 {
			f.now = f.now.Add(time.Second)
			var all []checkpoint.Entry
			for i := range lastBeat {
				if random.IntN(25) == 0 {
					lastBeat[i] = f.now
				}
				all = append(all, checkpoint.Entry{Class: "node", Name: names[i], Boot: boot, Silence: f.now.Sub(lastBeat[i])})
			}
			f.look(all...)
			for _, e := range f.stored() {
				if now := f.now.Sub(lastBeat[places[e.Name]]); now < e.Silence {
					t.Fatalf("seed %d: %s is stored with silence %v, and beat %v ago", seed, e.Name, e.Silence, now)
				}
			}
		}
		// The last value may exceed the rate, because later writes wait for it.
		if limit := 200*16<<10 + checkpoint.MaxBytes; f.bytes > limit || f.writes > 201 {
			t.Errorf("seed %d: %d writes and %d bytes in 200 s, want %d at most", seed, f.writes, f.bytes, limit)
		}
	}
}
