package session_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// modelHolder is a holder in the model.
type modelHolder struct {
	boot         string
	replaced     []string // the newest boot last
	sequence     uint64   // of the last beat through Register or Beat of the Table
	beatSequence uint64   // of the last beat
	last         monotonic.Instant
	state        session.State
	ref          session.Ref
}

// model is a Table without a wheel: it looks at all holders.
type model struct {
	now     monotonic.Instant
	reached monotonic.Instant // transitions were made up to here
	holders map[string]*modelHolder
	invalid []session.Ref
}

func (m *model) register(boot, name string, sequence uint64, age time.Duration, ifNewer bool) session.Outcome {
	h, known := m.holders[name]
	switch {
	case !known:
		m.holders[name] = &modelHolder{boot: boot, sequence: sequence, beatSequence: sequence, last: m.now.Add(-age), state: stateAfter(age)}
		return session.Opened
	case h.boot != boot && slices.Contains(h.replaced, boot) && h.state != session.Expired:
		return session.Superseded
	case h.boot != boot:
		m.invalid = append(m.invalid, h.ref)
		h.replaced = slices.DeleteFunc(append(h.replaced, h.boot), func(b string) bool { return b == boot })
		h.replaced, h.boot = h.replaced[max(0, len(h.replaced)-4):], boot
		m.beat(h, sequence, age)
		return session.TookOver
	case ifNewer && sequence <= h.sequence:
		return session.Repeated
	}
	return m.beat(h, sequence, age)
}

// beat applies a beat of a holder that was observed age ago.
func (m *model) beat(h *modelHolder, sequence uint64, age time.Duration) session.Outcome {
	h.sequence, h.beatSequence, h.last = sequence, sequence, max(h.last, m.now.Add(-age))
	state := min(h.state, stateAfter(m.reached.Sub(h.last)))
	if h.state == session.Alive || h.state == state {
		return session.Renewed
	}
	h.state = state
	return session.Recovered
}

// stateAfter returns the state of a new session after a silence.
func stateAfter(silence time.Duration) session.State {
	switch {
	case silence < node.Suspect:
		return session.Alive
	case silence < node.TTL:
		return session.Suspect
	}
	return session.Expired
}

// allows reports whether a silence allows a state: the state that is due, or the one before it
// within one Granularity.
func allows(silence time.Duration, state session.State) bool {
	late := func(limit time.Duration) bool { return silence >= limit+session.Granularity }
	switch state {
	case session.Alive:
		return !late(node.Suspect)
	case session.Suspect:
		return silence >= node.Suspect && !late(node.TTL)
	case session.Expired:
		return silence >= node.TTL && !late(node.TTL+node.Retention)
	}
	return silence >= node.TTL+node.Retention
}

func TestTable_AgreesWithNaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := newTable()
		m := &model{holders: map[string]*modelHolder{}, reached: -1}
		ages := rapid.Map(rapid.SampledFrom([]int{0, 0, 0, 1, 20, 30, 45, 70}), func(seconds int) time.Duration { return time.Duration(seconds) * time.Second })
		names := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		boots := rapid.SampledFrom([]string{"1", "2", "3", "4", "5", "6", "7"})
		sequences := rapid.Uint64Range(1, 6)
		t.Repeat(map[string]func(*rapid.T){
			"register": func(t *rapid.T) {
				registerBoth(t, table, m, names.Draw(t, "name"), boots.Draw(t, "boot"), sequences.Draw(t, "sequence"), ages.Draw(t, "age"), false)
			},
			"register if newer": func(t *rapid.T) {
				registerBoth(t, table, m, names.Draw(t, "name"), boots.Draw(t, "boot"), sequences.Draw(t, "sequence"), ages.Draw(t, "age"), true)
			},
			"beat": func(t *rapid.T) {
				h, known := m.holders[names.Draw(t, "name")]
				if !known {
					t.Skip("no such holder")
				}
				sequence, age := sequences.Draw(t, "sequence"), ages.Draw(t, "age")
				if got, want := table.Beat(m.now, m.now.Add(-age), h.ref, sequence), m.beat(h, sequence, age); got != want {
					t.Fatalf("beat: outcome %v, want %v", got, want)
				}
			},
			"concurrent beat": func(t *rapid.T) {
				h, known := m.holders[names.Draw(t, "name")]
				if !known {
					t.Skip("no such holder")
				}
				alive := h.state == session.Alive
				sequence := sequences.Draw(t, "sequence")
				if got := table.Heartbeats().Beat(m.now, h.ref, sequence); got != alive {
					t.Fatalf("Heartbeats.Beat: %t for a holder in state %v", got, h.state)
				}
				if alive {
					h.last, h.beatSequence = m.now, sequence
				}
			},
			"beat with an invalid ref": func(t *rapid.T) {
				if len(m.invalid) == 0 {
					t.Skip("none")
				}
				ref := rapid.SampledFrom(m.invalid).Draw(t, "ref")
				if table.Heartbeats().Beat(m.now, ref, 1) {
					t.Fatal("Heartbeats renewed an invalid ref")
				}
				if got := table.Beat(m.now, m.now, ref, 1); got.Accepted() {
					t.Fatalf("an invalid ref renewed: outcome %v", got)
				}
			},
			"release": func(t *rapid.T) { releaseBoth(t, table, m, names.Draw(t, "name"), boots.Draw(t, "boot")) },
			"wait": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.Int64Range(0, 90_000).Draw(t, "wait")) * time.Millisecond)
				advanceBoth(t, table, m)
			},
			"wait long": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.Int64Range(0, 3*3600_000).Draw(t, "wait")) * time.Millisecond)
				advanceBoth(t, table, m)
			},
			"": func(t *rapid.T) { compare(t, table, m) },
		})
	})
}

func registerBoth(t *rapid.T, table *session.Table, m *model, name, boot string, sequence uint64, age time.Duration, ifNewer bool) {
	ref, got := table.Register(session.Registration{
		Holder: holder(name, boot), Sequence: sequence, Received: m.now, Observed: m.now.Add(-age), IfNewer: ifNewer,
	})
	if want := m.register(boot, name, sequence, age, ifNewer); got != want {
		t.Fatalf("%s boot %s sequence %d: outcome %v, want %v", name, boot, sequence, got, want)
	}
	if got.Accepted() {
		m.holders[name].ref = ref
	}
}

func releaseBoth(t *rapid.T, table *session.Table, m *model, name, boot string) {
	_, got := table.Release(holder(name, boot))
	want := session.Unknown
	if h, known := m.holders[name]; known {
		want = session.Superseded
		if h.boot == boot {
			want = session.Renewed
			m.invalid = append(m.invalid, h.ref)
			delete(m.holders, name)
		}
	}
	if got != want {
		t.Fatalf("release %s boot %s: outcome %v, want %v", name, boot, got, want)
	}
}

// advanceBoth takes the states from the transitions and compares each with the silence in the
// model.
func advanceBoth(t *rapid.T, table *session.Table, m *model) {
	var made []session.Transition
	for more := true; more; {
		more = table.Advance(m.now, 2, func(step session.Transition) { made = append(made, step) })
	}
	m.reached = monotonic.Instant(time.Duration(m.now).Truncate(session.Granularity))
	for _, step := range made {
		name := step.Holder.Key.Name
		h := m.holders[name]
		if h == nil || h.state != step.From || h.boot != step.Holder.Boot || h.ref != step.Ref {
			t.Fatalf("transition %+v of holder %+v", step, h)
		}
		if h.state = step.To; step.To == session.Gone {
			if !allows(m.now.Sub(h.last), session.Gone) {
				t.Fatalf("%s removed after %v", name, m.now.Sub(h.last))
			}
			m.invalid = append(m.invalid, h.ref)
			delete(m.holders, name)
		}
	}
	for name, h := range m.holders {
		if silence := m.now.Sub(h.last); !allows(silence, h.state) {
			t.Fatalf("%s is %v after a silence of %v", name, h.state, silence)
		}
	}
}

func compare(t *rapid.T, table *session.Table, m *model) {
	var counts session.Counts
	for name, h := range m.holders {
		want := fmt.Sprint(h.boot, h.state, h.beatSequence, h.last, h.last.Add(node.TTL), h.ref)
		s, _ := table.Get(session.Key{Name: name})
		if got := fmt.Sprint(s.Holder.Boot, s.State, s.Sequence, s.LastBeat, s.Deadline, s.Ref); got != want {
			t.Fatalf("%s: got %s, want %s", name, got, want)
		}
		switch h.state {
		case session.Alive:
			counts.Alive++
		case session.Suspect:
			counts.Suspect++
		case session.Expired:
			counts.Expired++
		}
	}
	if got := table.Counts(); got != counts {
		t.Fatalf("counts %+v, want %+v", got, counts)
	}
	var names []string
	for _, key := range table.AppendKeys(nil, 0, table.Slots()) {
		names = append(names, key.Name)
	}
	slices.Sort(names)
	if want := slices.Sorted(maps.Keys(m.holders)); !slices.Equal(names, want) {
		t.Fatalf("keys %v, want %v", names, want)
	}
}
