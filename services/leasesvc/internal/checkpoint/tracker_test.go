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

// archive is a ledger and what is stored of its shard.
type archive struct {
	t      *testing.T
	ledger checkpoint.Tracker
	now    monotonic.Instant
	value  []byte // nil while nothing is stored
	writes int
	bytes  int
}

func newArchive(t *testing.T) *archive {
	return &archive{t: t, ledger: checkpoint.NewTracker(rules(), true)}
}

// look plans and carries the plan out.
func (a *archive) look(silent ...checkpoint.Entry) checkpoint.Action {
	a.t.Helper()
	given := slices.Clone(silent)
	plan := a.ledger.Plan(a.now, silent)
	if !slices.Equal(given, silent) {
		a.t.Fatalf("the plan changed what it was given from %v to %v", given, silent)
	}
	switch plan.Action {
	case checkpoint.Put:
		a.value = plan.Value
		a.writes, a.bytes = a.writes+1, a.bytes+len(plan.Value)
	case checkpoint.Delete:
		a.value = nil
		a.writes++
	}
	a.ledger = a.ledger.Applied(a.now, plan)
	if again := a.ledger.Plan(a.now, silent); again.Action != checkpoint.None {
		a.t.Fatalf("planning the result of %v yields %v", plan.Action, again.Action)
	}
	return plan.Action
}

func (a *archive) stored() []checkpoint.Entry {
	a.t.Helper()
	if a.value == nil {
		return nil
	}
	entries, err := checkpoint.Decode(a.value)
	if err != nil {
		a.t.Fatal(err)
	}
	return entries
}

func (a *archive) expect(what string, verb, want checkpoint.Action, stored ...checkpoint.Entry) {
	a.t.Helper()
	if verb != want {
		a.t.Errorf("%s: verb %d, want %d", what, verb, want)
	}
	if diff := cmp.Diff(stored, a.stored()); diff != "" {
		a.t.Errorf("%s: stored (-want +got):\n%s", what, diff)
	}
}

func TestLedger_StoresTheSilentAndTakesBackAtOnce(t *testing.T) {
	a := newArchive(t)
	a.expect("nobody is silent", a.look(), checkpoint.None)
	a.expect("a little late", a.look(silent("n1", 8*time.Second)), checkpoint.None)
	one := silent("n1", 13*time.Second)
	a.expect("suspect", a.look(one), checkpoint.Put, one)

	a.now = a.now.Add(time.Second)
	a.expect("goes on", a.look(silent("n1", 14*time.Second)), checkpoint.None, one)
	a.expect("another one waits for company", a.look(silent("n1", 14*time.Second), silent("n2", 13*time.Second)), checkpoint.None, one)
	a.now = a.now.Add(2 * time.Second)
	both := []checkpoint.Entry{silent("n1", 16*time.Second), silent("n2", 15*time.Second)}
	a.expect("and is written", a.look(both...), checkpoint.Put, both...)

	a.now = a.now.Add(time.Second)
	two := silent("n2", 16*time.Second)
	a.expect("n1 has beaten", a.look(two), checkpoint.Put, two)
	a.now = a.now.Add(time.Second / 2)
	a.expect("so has n2", a.look(), checkpoint.Delete)
	a.expect("and now", a.look(), checkpoint.None)
}

func TestLedger_SettledHoldersAreWrittenAgainAndKeptUpToDate(t *testing.T) {
	a := newArchive(t)
	a.look(silent("n1", 13*time.Second))
	a.now = a.now.Add(10 * time.Second)
	a.expect("expired", a.look(silent("n1", 23*time.Second)), checkpoint.None, silent("n1", 13*time.Second))
	a.now = a.now.Add(7 * time.Second)
	a.expect("for a floor", a.look(silent("n1", 30*time.Second)), checkpoint.Put, silent("n1", 30*time.Second))
	a.now = a.now.Add(59 * time.Second)
	a.expect("a minute less", a.look(silent("n1", 89*time.Second)), checkpoint.None, silent("n1", 30*time.Second))
	a.now = a.now.Add(time.Second)
	a.expect("a minute", a.look(silent("n1", 90*time.Second)), checkpoint.Put, silent("n1", 90*time.Second))
	a.now = a.now.Add(time.Hour)
	a.expect("forgotten", a.look(), checkpoint.Delete)
}

// A holder that beat and fell silent again between two looks was heard all the same; so was another boot of it.
func TestLedger_SilenceThatBeganAnewIsNoticed(t *testing.T) {
	for what, next := range map[string]checkpoint.Entry{
		"a shorter silence": silent("n1", 14*time.Second),
		"another boot":      {Class: "node", Name: "n1", Boot: "b-2", Silence: 2 * time.Hour},
	} {
		a := newArchive(t)
		a.look(silent("n1", time.Hour))
		a.now = a.now.Add(2 * time.Second)
		a.expect(what, a.look(next), checkpoint.Put, next)
	}
}

func TestLedger_ForeignOrDoubtfulContentIsReplaced(t *testing.T) {
	for what, ledger := range map[string]checkpoint.Tracker{
		"of another replica": checkpoint.NewTracker(rules(), false),
		"after a failure":    checkpoint.NewTracker(rules(), true).Unconfirmed(0, checkpoint.Plan{Action: checkpoint.Delete}),
	} {
		a := newArchive(t)
		a.ledger, a.value = ledger, []byte("something")
		a.expect(what, a.look(), checkpoint.Delete)
		a.ledger, a.value = ledger, []byte("something")
		a.expect(what, a.look(silent("n1", time.Minute)), checkpoint.Put, silent("n1", time.Minute))
	}
	if got := checkpoint.NewTracker(rules(), true).Unconfirmed(0, checkpoint.Plan{}).Plan(0, nil).Action; got != checkpoint.None {
		t.Errorf("nothing was done, and that is in doubt: %d", got)
	}
}

func TestLedger_UnknownClassesAreLeftAlone(t *testing.T) {
	a := newArchive(t)
	a.expect("unknown", a.look(checkpoint.Entry{Class: "of-yore", Name: "n1", Boot: "1", Silence: time.Hour}), checkpoint.None)
}

func TestLedger_LeavesOutTheNewestWhereThereIsNoRoom(t *testing.T) {
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
		t.Errorf("%d kept and %d left out of %d", len(got), plan.Omitted, len(many))
	}
	if want := many[plan.Omitted:]; !cmp.Equal(want, got) {
		t.Errorf("kept are not the %d that were silent for the longest", len(got))
	}
}

// A fleet that comes and goes at random, looked at every second: what is stored is never untrue after a look, and what is
// written stays within its rate however much changes.
func TestLedger_IsNeverUntrueAndNeverMuch(t *testing.T) {
	boot := strings.Repeat("b", 64)
	for seed := range uint64(7) {
		random := rand.New(rand.NewPCG(seed, 7))
		a := newArchive(t)
		holders := 10 << seed
		heard := make([]monotonic.Instant, holders)
		names, places := make([]string, holders), map[string]int{}
		for i := range names {
			names[i] = fmt.Sprintf("node-%04d", i)
			places[names[i]] = i
		}
		for range 200 {
			a.now = a.now.Add(time.Second)
			var all []checkpoint.Entry
			for i := range heard {
				if random.IntN(25) == 0 {
					heard[i] = a.now
				}
				all = append(all, checkpoint.Entry{Class: "node", Name: names[i], Boot: boot, Silence: a.now.Sub(heard[i])})
			}
			a.look(all...)
			for _, e := range a.stored() {
				if now := a.now.Sub(heard[places[e.Name]]); now < e.Silence {
					t.Fatalf("seed %d: %s is stored as silent for %v, and was heard %v ago", seed, e.Name, e.Silence, now)
				}
			}
		}
		// The last value is written before its time is paid for.
		if limit := 200*16<<10 + checkpoint.MaxBytes; a.bytes > limit || a.writes > 201 {
			t.Errorf("seed %d: %d writes and %d bytes in 200 s, want %d at most", seed, a.writes, a.bytes, limit)
		}
	}
}
