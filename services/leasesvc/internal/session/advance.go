package session

import "github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"

// Advance makes transitions whose time has come by now and shows them to visit; those of one session in their order. It looks
// at budget sessions at most: with more, there are others whose time has come.
func (t *Table) Advance(now monotonic.Instant, budget int, visit func(Transition)) (more bool) {
	return t.wheel.fire(now, budget, func(slot uint32) {
		for {
			// The word that is judged is the word that is swapped: no beat can come in between.
			word := t.word(slot)
			if due := t.dueBy(slot, word); due > now {
				t.wheel.file(slot, due)
				return
			}
			step, stands := t.step(slot, word)
			if !stands {
				continue // a beat came first
			}
			visit(step)
			if step.To == Gone {
				return
			}
		}
	})
}

func (t *Table) step(slot uint32, word uint64) (step Transition, stands bool) {
	r := t.records.At(slot)
	step = Transition{Ref: t.ref(slot), Holder: t.holder(slot), From: r.state, To: r.state + 1}
	if r.state == Expired {
		step.To = Gone
		t.forget(slot)
		return step, true
	}
	return step, t.move(slot, word, step.To)
}

// move makes a session Suspect or Expired, as its pulse was word. It is false, and nothing has changed, when a beat came since.
func (t *Table) move(slot uint32, word uint64, to State) bool {
	r := t.records.At(slot)
	if r.state == Alive && !t.beats.At(slot).word.CompareAndSwap(word, word&^aliveBit) {
		return false
	}
	t.counts[r.state]--
	t.counts[to]++
	r.state = to
	return true
}

// due is when the state of the session ends if no beat comes.
func (t *Table) due(slot uint32) monotonic.Instant { return t.dueBy(slot, t.word(slot)) }

func (t *Table) dueBy(slot uint32, word uint64) monotonic.Instant {
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

func (t *Table) file(slot uint32) { t.wheel.file(slot, t.due(slot)) }
