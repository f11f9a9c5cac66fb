package session

// Get returns the session of a key.
func (t *Table) Get(key Key) (Session, bool) {
	slot, known := t.index[key]
	if !known {
		return Session{}, false
	}
	return t.view(slot), true
}

// Look returns the session that ref names; false once that life of it is over.
func (t *Table) Look(ref Ref) (Session, bool) {
	if t.resolve(ref) != Renewed {
		return Session{}, false
	}
	return t.view(ref.slot), true
}

// At returns the session that has a slot; false when it is free.
func (t *Table) At(slot uint32) (Session, bool) {
	if slot >= t.used || t.at(slot).life == 0 {
		return Session{}, false
	}
	return t.view(slot), true
}

func (t *Table) view(slot uint32) Session {
	r := t.at(slot)
	return Session{
		Ref: Ref{slot: slot, life: r.life}, Holder: r.holder(), State: r.state, Sequence: r.sequence,
		Started: r.started, LastBeat: r.lastBeat, Deadline: r.lastBeat.Add(t.classes[r.class].TTL),
	}
}

// Keys returns the keys of all sessions in no particular order.
func (t *Table) Keys() []Key {
	keys := make([]Key, 0, len(t.index))
	for slot := range t.used {
		if r := t.at(slot); r.life != 0 {
			keys = append(keys, Key{Class: r.class, Name: r.name})
		}
	}
	return keys
}

// Changes counts how often a key came or went: as long as it stands, so do the Keys.
func (t *Table) Changes() uint64 { return t.changes }

// Counts returns how many sessions there are in each state.
func (t *Table) Counts() Counts {
	return Counts{Alive: t.counts[Alive], Suspect: t.counts[Suspect], Expired: t.counts[Expired]}
}
