package session_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

var node = session.Class{
	Name: "node", Interval: 10 * time.Second, Suspect: 25 * time.Second, TTL: 40 * time.Second, Retention: time.Hour,
}

func at(d time.Duration) monotonic.Instant { return monotonic.Instant(d) }

func holder(name, boot string) session.Holder {
	return session.Holder{Key: session.Key{Name: name}, Boot: boot}
}

func newTable() *session.Table { return session.NewTable([]session.Class{node}, 100) }

func register(table *session.Table, now monotonic.Instant, h session.Holder, sequence uint64) (session.Ref, session.Outcome) {
	return table.Register(session.Registration{Holder: h, Sequence: sequence, Received: now, Observed: now})
}

func registerIfNewer(table *session.Table, now monotonic.Instant, h session.Holder, sequence uint64) (session.Ref, session.Outcome) {
	return table.Register(session.Registration{Holder: h, Sequence: sequence, Received: now, Observed: now, IfNewer: true})
}

func advance(table *session.Table, now monotonic.Instant) []session.Transition {
	var made []session.Transition
	table.Advance(now, 1000, func(step session.Transition) { made = append(made, step) })
	return made
}

type step struct {
	Name     string
	From, To session.State
}

func steps(transitions []session.Transition) []step {
	var out []step
	for _, t := range transitions {
		out = append(out, step{Name: t.Holder.Key.Name, From: t.From, To: t.To})
	}
	return out
}

func TestForget_EndsTheSessionOfAValidRefOnly(t *testing.T) {
	table := session.NewTable([]session.Class{node}, 2)
	earlier, _ := register(table, 0, holder("a", "1"), 1)
	ref, _ := register(table, 0, holder("a", "2"), 1)
	table.Forget(earlier)
	if got := table.Counts(); got != (session.Counts{Alive: 1}) {
		t.Errorf("a Ref of the earlier boot ended the session: %+v", got)
	}
	table.Forget(ref)
	table.Forget(ref)
	if got := table.Counts(); got != (session.Counts{}) || table.Beat(0, 0, ref, 2) != session.Unknown {
		t.Errorf("counts %+v after Forget", got)
	}
	if again, outcome := register(table, 0, holder("b", "1"), 1); outcome != session.Opened || again.Slot() != ref.Slot() || again == ref {
		t.Errorf("%+v %v, want the slot of %+v with another generation", again, outcome, ref)
	}
}

func TestAdvance_SilenceLeadsThroughAllStates(t *testing.T) {
	table := newTable()
	register(table, at(0), holder("a", "1"), 1)
	phases := []struct {
		now  time.Duration
		want []step
	}{
		{24900 * time.Millisecond, nil},
		{25 * time.Second, []step{{"a", session.Alive, session.Suspect}}},
		{39900 * time.Millisecond, nil},
		{40 * time.Second, []step{{"a", session.Suspect, session.Expired}}},
		{time.Hour, nil},
		{time.Hour + 40*time.Second, []step{{"a", session.Expired, session.Gone}}},
		{2 * time.Hour, nil},
	}
	for _, step := range phases {
		if diff := cmp.Diff(step.want, steps(advance(table, at(step.now)))); diff != "" {
			t.Errorf("at %v (-want +got):\n%s", step.now, diff)
		}
	}
	if got := table.Counts(); got != (session.Counts{}) {
		t.Errorf("counts after the last transition: %+v", got)
	}
}

func TestAdvance_OneJumpMakesEveryTransitionInOrder(t *testing.T) {
	table := newTable()
	register(table, at(0), holder("a", "1"), 1)
	want := []step{
		{"a", session.Alive, session.Suspect}, {"a", session.Suspect, session.Expired}, {"a", session.Expired, session.Gone},
	}
	if diff := cmp.Diff(want, steps(advance(table, at(24*time.Hour)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBeat_RevivesFromEveryState(t *testing.T) {
	for _, silence := range []time.Duration{time.Second, 30 * time.Second, 50 * time.Second} {
		table := newTable()
		ref, _ := register(table, at(0), holder("a", "1"), 1)
		advance(table, at(silence))
		want := session.Recovered
		if silence < node.Suspect {
			want = session.Renewed
		}
		if got := table.Beat(at(silence), at(silence), ref, 2); got != want {
			t.Errorf("beat after %v: outcome %v, want %v", silence, got, want)
		}
		wantSession := session.Session{
			Ref: ref, Holder: holder("a", "1"), State: session.Alive, Sequence: 2,
			LastBeat: at(silence), Deadline: at(silence + node.TTL),
		}
		got, _ := table.Lookup(ref)
		if diff := cmp.Diff(wantSession, got, cmp.AllowUnexported(session.Ref{})); diff != "" {
			t.Errorf("after %v (-want +got):\n%s", silence, diff)
		}
		if moved := advance(table, at(silence+node.Suspect-time.Second)); moved != nil {
			t.Errorf("after %v: moved early: %v", silence, steps(moved))
		}
		if diff := cmp.Diff([]step{{"a", session.Alive, session.Suspect}}, steps(advance(table, at(silence+node.Suspect)))); diff != "" {
			t.Errorf("after %v (-want +got):\n%s", silence, diff)
		}
	}
}

func TestRegister_NewestBootHasTheSession(t *testing.T) {
	table := newTable()
	old, _ := register(table, at(0), holder("a", "1"), 1)
	young, outcome := register(table, at(1), holder("a", "2"), 1)
	if outcome != session.TookOver {
		t.Fatalf("second boot: outcome %v, want TookOver", outcome)
	}
	if got := table.Beat(at(2), at(2), old, 9); got != session.Superseded {
		t.Errorf("beat of the old boot: outcome %v, want Superseded", got)
	}
	if got := table.Beat(at(2), at(2), young, 2); got != session.Renewed {
		t.Errorf("beat of the new boot: outcome %v, want Renewed", got)
	}
	if _, got := register(table, at(3), holder("a", "1"), 10); got != session.Superseded {
		t.Errorf("the old boot registers again: outcome %v, want Superseded", got)
	}
	advance(table, at(time.Minute))
	if _, got := register(table, at(time.Minute), holder("a", "1"), 10); got != session.TookOver {
		t.Errorf("the old boot after the new one expired: outcome %v, want TookOver", got)
	}
}

// An agent restarts with a new boot long after the holder was observed for the last time.
func TestRegister_NewBootOfASilentHolderStaysExpired(t *testing.T) {
	table := newTable()
	register(table, at(0), holder("a", "1"), 1)
	advance(table, at(time.Minute))
	observed := session.Registration{Holder: holder("a", "2"), Sequence: 7, Received: at(time.Minute), Observed: at(10 * time.Second)}
	ref, outcome := table.Register(observed)
	got, _ := table.Lookup(ref)
	want := session.Session{
		Ref: ref, Holder: holder("a", "2"), State: session.Expired, Sequence: 7,
		Started: at(time.Minute), LastBeat: at(10 * time.Second), Deadline: at(50 * time.Second),
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(session.Ref{})); diff != "" || outcome != session.TookOver {
		t.Errorf("outcome %v (-want +got):\n%s", outcome, diff)
	}
	if got := table.Beat(at(time.Minute), at(50*time.Second), ref, 8); got != session.Recovered {
		t.Errorf("the holder was observed 10 s ago: outcome %v, want Recovered", got)
	}
}

// A new boot counts from the receipt of its beat, however long ago its holder was observed.
func TestRegister_ObservedAgeDoesNotOrderBoots(t *testing.T) {
	table := newTable()
	register(table, at(30*time.Second), holder("a", "1"), 1)
	_, outcome := table.Register(session.Registration{Holder: holder("a", "2"), Sequence: 1, Received: at(31 * time.Second), Observed: at(time.Second)})
	if outcome != session.TookOver {
		t.Errorf("outcome %v, want TookOver", outcome)
	}
}

func TestRegister_FirstBeatOfASilentHolder(t *testing.T) {
	for age, want := range map[time.Duration]session.State{
		24 * time.Second: session.Alive, 25 * time.Second: session.Suspect, 40 * time.Second: session.Expired, time.Minute: session.Expired,
	} {
		table := newTable()
		ref, outcome := table.Register(session.Registration{Holder: holder("a", "1"), Sequence: 1, Received: at(time.Hour), Observed: at(time.Hour - age)})
		if got, _ := table.Lookup(ref); outcome != session.Opened || got.State != want {
			t.Errorf("observed %v ago: outcome %v and state %v, want Opened and %v", age, outcome, got.State, want)
		}
	}
}

func TestRegisterIfNewer_SequenceOrdersBeatsOfOneBoot(t *testing.T) {
	table := newTable()
	registerIfNewer(table, at(0), holder("a", "1"), 5)
	for _, c := range []struct {
		boot     string
		sequence uint64
		want     session.Outcome
	}{
		{"1", 5, session.Repeated}, {"1", 4, session.Repeated}, {"1", 6, session.Renewed},
		{"2", 1, session.TookOver}, {"2", 1, session.Repeated}, {"1", 99, session.Superseded},
	} {
		if _, got := registerIfNewer(table, at(time.Second), holder("a", c.boot), c.sequence); got != c.want {
			t.Errorf("boot %s sequence %d: outcome %v, want %v", c.boot, c.sequence, got, c.want)
		}
	}
}

func TestRegisterIfNewer_RepeatedBeatDoesNotMoveTheDeadline(t *testing.T) {
	table := newTable()
	registerIfNewer(table, at(0), holder("a", "1"), 5)
	registerIfNewer(table, at(20*time.Second), holder("a", "1"), 5)
	got, _ := table.Get(session.Key{Name: "a"})
	if got.Deadline != at(node.TTL) {
		t.Errorf("deadline %v, want %v", got.Deadline, at(node.TTL))
	}
}

func TestRelease_InvalidatesTheRefEvenIfTheSlotIsReused(t *testing.T) {
	table := newTable()
	ref, _ := register(table, at(0), holder("a", "1"), 1)
	if _, got := table.Release(holder("a", "2")); got != session.Superseded {
		t.Errorf("release by another boot: outcome %v, want Superseded", got)
	}
	if _, got := table.Release(holder("a", "1")); got != session.Renewed {
		t.Errorf("release: outcome %v, want Renewed", got)
	}
	if _, got := table.Release(holder("a", "1")); got != session.Unknown {
		t.Errorf("release again: outcome %v, want Unknown", got)
	}
	other, _ := register(table, at(1), holder("b", "1"), 1)
	if other.Slot() != ref.Slot() {
		t.Fatalf("slot %d was not reused, got %d", ref.Slot(), other.Slot())
	}
	if got := table.Beat(at(2), at(2), ref, 2); got != session.Unknown {
		t.Errorf("beat with a ref to the released session: outcome %v, want Unknown", got)
	}
	if moved := advance(table, at(node.Suspect)); moved != nil {
		t.Errorf("the released session still has transitions: %v", steps(moved))
	}
}

func TestRegister_LimitAppliesToNewHoldersOnly(t *testing.T) {
	table := session.NewTable([]session.Class{node}, 1)
	register(table, at(0), holder("a", "1"), 1)
	if _, got := register(table, at(0), holder("b", "1"), 1); got != session.Full {
		t.Errorf("above the limit: outcome %v, want Full", got)
	}
	if _, got := register(table, at(0), holder("a", "1"), 2); got != session.Renewed {
		t.Errorf("known holder at the limit: outcome %v, want Renewed", got)
	}
}

func TestBeat_ZeroRefIsUnknown(t *testing.T) {
	table := newTable()
	if got := table.Beat(at(0), at(0), session.Ref{}, 1); got != session.Unknown {
		t.Errorf("zero ref on an empty table: outcome %v, want Unknown", got)
	}
	register(table, at(0), holder("a", "1"), 1)
	if got := table.Beat(at(0), at(0), session.Ref{}, 1); got != session.Unknown {
		t.Errorf("zero ref: outcome %v, want Unknown", got)
	}
}

func TestFirstInterval_IsSpreadByName(t *testing.T) {
	seen := map[time.Duration]bool{}
	for _, name := range []string{"a", "b", "c", "node-1", "node-2", "node-3"} {
		first := node.FirstInterval(name)
		if first < node.Interval/2 || first > node.Interval {
			t.Errorf("%s: first interval %v outside [%v, %v]", name, first, node.Interval/2, node.Interval)
		}
		seen[first] = true
	}
	if len(seen) < 5 {
		t.Errorf("six names share %d first intervals", len(seen))
	}
}

// A forwarded beat may come late. It must not revive a holder that has been silent since.
func TestRegister_OldBeatRevivesNoHolder(t *testing.T) {
	for name, tt := range map[string]struct {
		now, beat time.Duration
		want      session.State
		outcome   session.Outcome
	}{
		"suspect, beat before that":               {now: 30 * time.Second, beat: 4 * time.Second, want: session.Suspect, outcome: session.Renewed},
		"suspect, beat since":                     {now: 30 * time.Second, beat: 6 * time.Second, want: session.Alive, outcome: session.Recovered},
		"suspect, beat before its last beat":      {now: 30 * time.Second, beat: -time.Second, want: session.Suspect, outcome: session.Renewed},
		"expired, beat so long ago that it stays": {now: time.Minute, beat: 19 * time.Second, want: session.Expired, outcome: session.Renewed},
		"expired, beat since, and silent again":   {now: time.Minute, beat: 21 * time.Second, want: session.Suspect, outcome: session.Recovered},
		"expired, beat before its last beat":      {now: time.Minute, beat: -time.Second, want: session.Expired, outcome: session.Renewed},
		"expired, beat now":                       {now: time.Minute, beat: time.Minute, want: session.Alive, outcome: session.Recovered},
		"alive, beat before its last beat":        {now: 10 * time.Second, beat: -time.Second, want: session.Alive, outcome: session.Renewed},
		"suspect for a moment, beat in the tick":  {now: 25 * time.Second, beat: 10 * time.Millisecond, want: session.Alive, outcome: session.Recovered},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable()
			ref, _ := register(table, at(0), holder("a", "1"), 1)
			advance(table, at(tt.now))
			if _, outcome := register(table, at(tt.beat), holder("a", "1"), 2); outcome != tt.outcome {
				t.Errorf("outcome %v, want %v", outcome, tt.outcome)
			}
			if s, _ := table.Lookup(ref); s.State != tt.want || s.LastBeat != at(max(0, tt.beat)) {
				t.Errorf("%v, last beat at %v, want %v at %v", s.State, s.LastBeat, tt.want, max(0, tt.beat))
			}
		})
	}
}
