package session

import "github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"

// Advance makes the transitions that are due and calls visit with each. Transitions of one session
// come in order. It looks at limit sessions at most and returns true if further sessions are due.
func (t *Table) Advance(now monotonic.Instant, limit int, visit func(Transition)) (more bool) {
	return t.wheel.Fire(now, limit, func(slot uint32) {
		for {
			// The word that is judged is the word that is swapped, so no beat is lost in between.
			word := t.word(slot)
			if deadline := t.transitionTime(slot, word); deadline > now {
				t.wheel.File(slot, deadline)
				return
			}
			transition, ok := t.advanceSlot(slot, word)
			if !ok {
				continue // a concurrent beat was first
			}
			visit(transition)
			if transition.To == Gone {
				return
			}
		}
	})
}

func (t *Table) advanceSlot(slot uint32, word uint64) (transition Transition, ok bool) {
	r := t.records.At(slot)
	transition = Transition{Ref: t.ref(slot), Holder: t.holder(slot), From: r.state, To: r.state + 1}
	if r.state == Expired {
		transition.To = Gone
		t.remove(slot)
		return transition, true
	}
	return transition, t.setState(slot, word, transition.To)
}

// setState makes a session Suspect or Expired if its word is still the given one. It is false if a
// beat came first.
func (t *Table) setState(slot uint32, word uint64, to State) bool {
	r := t.records.At(slot)
	if r.state == Alive && !t.beats.At(slot).word.CompareAndSwap(word, word&^aliveBit) {
		return false
	}
	t.counts[r.state]--
	t.counts[to]++
	r.state = to
	return true
}

// transitionTime returns when the session changes its state if no beat comes after the one in word.
func (t *Table) transitionTime(slot uint32, word uint64) monotonic.Instant {
	r := t.records.At(slot)
	c, beat := &t.classes[r.class], beatIn(word)
	switch r.state {
	case Alive:
		return beat.Add(c.Suspect)
	case Suspect:
		return beat.Add(c.TTL)
	}
	return beat.Add(c.TTL + c.Retention)
}

// file files the session in the wheel.
func (t *Table) file(slot uint32) { t.wheel.File(slot, t.transitionTime(slot, t.word(slot))) }
