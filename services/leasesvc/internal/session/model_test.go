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

// modelled is what the naive model remembers of a holder; it keeps times, and works states out of them when asked.
type modelled struct {
	boot     string
	replaced []string // the newest last
	sequence uint64   // of the last beat that the owner took
	shown    uint64   // of the last beat
	last     monotonic.Instant
	state    session.State
	ref      session.Ref
}

// model is the Table without a wheel: every question is answered by looking at every holder.
type model struct {
	now     monotonic.Instant
	holders map[string]*modelled
	dead    []session.Ref
}

func (m *model) meet(boot, name string, sequence uint64, ordered bool) session.Outcome {
	h, known := m.holders[name]
	switch {
	case !known:
		m.holders[name] = &modelled{boot: boot, sequence: sequence, shown: sequence, last: m.now, state: session.Alive}
		return session.Opened
	case h.boot != boot && slices.Contains(h.replaced, boot) && h.state != session.Expired:
		return session.Superseded
	case h.boot != boot:
		m.dead = append(m.dead, h.ref)
		h.replaced = slices.DeleteFunc(append(h.replaced, h.boot), func(b string) bool { return b == boot })
		h.replaced, h.boot = h.replaced[max(0, len(h.replaced)-4):], boot
		h.sequence, h.shown, h.last, h.state = sequence, sequence, m.now, session.Alive
		return session.TookOver
	case ordered && sequence <= h.sequence:
		return session.Repeated
	}
	return m.beat(h, sequence)
}

func (m *model) beat(h *modelled, sequence uint64) session.Outcome {
	before := h.state
	h.sequence, h.shown, h.last, h.state = sequence, sequence, m.now, session.Alive
	if before == session.Alive {
		return session.Renewed
	}
	return session.Recovered
}

// permitted tells which states a silence allows: the one that is due, or the one before it for at most one Granularity.
func permitted(silence time.Duration, state session.State) bool {
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
		m := &model{holders: map[string]*modelled{}}
		names := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		boots := rapid.SampledFrom([]string{"1", "2", "3", "4", "5", "6", "7"})
		sequences := rapid.Uint64Range(1, 6)
		t.Repeat(map[string]func(*rapid.T){
			"introduce": func(t *rapid.T) {
				meetBoth(t, table, m, names.Draw(t, "name"), boots.Draw(t, "boot"), sequences.Draw(t, "sequence"), false)
			},
			"renew": func(t *rapid.T) {
				meetBoth(t, table, m, names.Draw(t, "name"), boots.Draw(t, "boot"), sequences.Draw(t, "sequence"), true)
			},
			"beat": func(t *rapid.T) {
				h, known := m.holders[names.Draw(t, "name")]
				if !known {
					t.Skip("no such holder")
				}
				sequence := sequences.Draw(t, "sequence")
				if got, want := table.Beat(m.now, h.ref, sequence), m.beat(h, sequence); got != want {
					t.Fatalf("beat: outcome %v, want %v", got, want)
				}
			},
			"beat past the owner": func(t *rapid.T) {
				h, known := m.holders[names.Draw(t, "name")]
				if !known {
					t.Skip("no such holder")
				}
				alive := h.state == session.Alive
				sequence := sequences.Draw(t, "sequence")
				if got := table.Heartbeats().Beat(m.now, h.ref, sequence); got != alive {
					t.Fatalf("beat past the owner: %t for a holder that is %v", got, h.state)
				}
				if alive {
					h.last, h.shown = m.now, sequence
				}
			},
			"beat with a dead ref": func(t *rapid.T) {
				if len(m.dead) == 0 {
					t.Skip("none")
				}
				ref := rapid.SampledFrom(m.dead).Draw(t, "ref")
				if table.Heartbeats().Beat(m.now, ref, 1) {
					t.Fatal("a dead ref renewed past the owner")
				}
				if got := table.Beat(m.now, ref, 1); got.Accepted() {
					t.Fatalf("a dead ref renewed: outcome %v", got)
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

func meetBoth(t *rapid.T, table *session.Table, m *model, name, boot string, sequence uint64, ordered bool) {
	call := table.Register
	if ordered {
		call = table.RegisterIfNewer
	}
	ref, got := call(m.now, holder(name, boot), sequence)
	if want := m.meet(boot, name, sequence, ordered); got != want {
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
			m.dead = append(m.dead, h.ref)
			delete(m.holders, name)
		}
	}
	if got != want {
		t.Fatalf("release %s boot %s: outcome %v, want %v", name, boot, got, want)
	}
}

// advanceBoth takes the states from the transitions and holds each against the silence that the model remembers.
func advanceBoth(t *rapid.T, table *session.Table, m *model) {
	var made []session.Transition
	for more := true; more; {
		more = table.Advance(m.now, 2, func(step session.Transition) { made = append(made, step) })
	}
	for _, step := range made {
		name := step.Holder.Key.Name
		h := m.holders[name]
		if h == nil || h.state != step.From || h.boot != step.Holder.Boot || h.ref != step.Ref {
			t.Fatalf("transition %+v of a holder that is %+v", step, h)
		}
		if h.state = step.To; step.To == session.Gone {
			if !permitted(m.now.Sub(h.last), session.Gone) {
				t.Fatalf("%s forgotten after %v", name, m.now.Sub(h.last))
			}
			m.dead = append(m.dead, h.ref)
			delete(m.holders, name)
		}
	}
	for name, h := range m.holders {
		if silence := m.now.Sub(h.last); !permitted(silence, h.state) {
			t.Fatalf("%s is %v after a silence of %v", name, h.state, silence)
		}
	}
}

func compare(t *rapid.T, table *session.Table, m *model) {
	var counts session.Counts
	for name, h := range m.holders {
		want := fmt.Sprint(h.boot, h.state, h.shown, h.last, h.last.Add(node.TTL), h.ref)
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
