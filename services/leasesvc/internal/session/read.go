package session

import "github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"

// Get returns the session of a key.
func (t *Table) Get(key Key) (Session, bool) {
	slot, known := t.index.find(key, t.keyAt)
	if !known {
		return Session{}, false
	}
	return t.view(slot), true
}

// Look returns the session that ref names; false once that life of it is over.
func (t *Table) Lookup(ref Ref) (Session, bool) {
	if t.resolve(ref) != Renewed {
		return Session{}, false
	}
	return t.view(ref.slot), true
}

// At returns the session that has a slot; false when it is free.
func (t *Table) At(slot uint32) (Session, bool) {
	if int(slot) >= t.records.Len() || t.records.At(slot).state == Gone {
		return Session{}, false
	}
	return t.view(slot), true
}

// Slots is below what all slots are: At is false for those from here on.
func (t *Table) Slots() int { return t.records.Len() }

func (t *Table) view(slot uint32) Session {
	r, word := t.records.At(slot), t.word(slot)
	beat := beatIn(word)
	return Session{
		Ref: Ref{slot: slot, generation: generationIn(word)}, Holder: t.holder(slot), State: r.state,
		Sequence: t.beats.At(slot).sequence.Load(), Started: r.started, LastBeat: beat,
		Deadline: beat.Add(t.classes[r.class].TTL),
	}
}

// Name is that of the holder that has a slot; the slot must not be free.
func (t *Table) Name(slot uint32) string { return t.records.At(slot).name }

// LastBeat is when the holder that has a slot was last heard; the slot must not be free.
func (t *Table) LastBeat(slot uint32) monotonic.Instant { return beatIn(t.word(slot)) }

// AppendKeys adds the keys of the sessions in the slots from first up to end, which may be beyond all slots.
func (t *Table) AppendKeys(keys []Key, first, end int) []Key {
	for slot := uint32(first); int(slot) < min(end, t.records.Len()); slot++ {
		if t.records.At(slot).state != Gone {
			keys = append(keys, t.keyAt(slot))
		}
	}
	return keys
}

// Changes counts how often a key came or went: as long as it stands, so do the keys.
func (t *Table) Changes() uint64 { return t.changes }

// Counts returns how many sessions there are in each state.
func (t *Table) Counts() Counts {
	return Counts{Alive: t.counts[Alive], Suspect: t.counts[Suspect], Expired: t.counts[Expired]}
}
