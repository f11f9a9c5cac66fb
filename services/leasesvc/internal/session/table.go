package session

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// record is one slot of the Table. A free slot has life 0.
type record struct {
	name, boot string
	sequence   uint64
	started    monotonic.Instant
	lastBeat   monotonic.Instant
	// life numbers the boots that had this slot; born is the life under which the present key got it. Lives only grow, so a
	// Ref with a life in [born, life) was superseded and one below born belongs to a session that is gone.
	life, born uint64
	// replaced is the fingerprint of the boot that this one took over from; 0 for none.
	replaced uint64
	class    ClassID
	state    State
}

// blockSize is how many records are allocated together. Blocks are never moved, so a growing Table copies nothing.
const blockSize = 1024

// Table is the sessions of one replica. It is not safe for concurrent use: one goroutine owns it.
type Table struct {
	classes []Class
	limit   int
	index   map[Key]uint32
	blocks  []*[blockSize]record
	used    uint32
	free    []uint32
	lives   uint64
	wheel   *wheel
	counts  [Expired + 1]int
	changes uint64
}

// NewTable returns an empty Table that never has more than limit sessions.
func NewTable(classes []Class, limit int) *Table {
	return &Table{classes: classes, limit: limit, index: map[Key]uint32{}, wheel: newWheel()}
}

// Class finds a class by its name.
func (t *Table) Class(name string) (ClassID, bool) {
	for i, c := range t.classes {
		if c.Name == name {
			return ClassID(i), true
		}
	}
	return 0, false
}

// Introduce opens or renews the session of a holder that has begun to number its beats, with whatever number it begins:
// within a connection the order is given already.
func (t *Table) Introduce(now monotonic.Instant, h Holder, sequence uint64) (Ref, Outcome) {
	return t.meet(now, h, sequence, false)
}

// Renew opens or renews the session of a holder whose beats may arrive out of order or twice: a sequence that is not above
// the last accepted one of the same boot is Repeated.
func (t *Table) Renew(now monotonic.Instant, h Holder, sequence uint64) (Ref, Outcome) {
	return t.meet(now, h, sequence, true)
}

func (t *Table) meet(now monotonic.Instant, h Holder, sequence uint64, ordered bool) (Ref, Outcome) {
	slot, known := t.index[h.Key]
	if !known {
		return t.open(now, h, sequence)
	}
	r := t.at(slot)
	switch {
	case r.boot != h.Boot && r.replaced == fingerprint(h.Boot) && r.state != Expired:
		return Ref{}, Superseded
	case r.boot != h.Boot:
		return t.takeOver(now, slot, h.Boot, sequence), TookOver
	case ordered && sequence <= r.sequence:
		return Ref{slot: slot, life: r.life}, Repeated
	}
	return Ref{slot: slot, life: r.life}, t.renew(now, slot, sequence)
}

func (t *Table) open(now monotonic.Instant, h Holder, sequence uint64) (Ref, Outcome) {
	if len(t.index) >= t.limit {
		return Ref{}, Full
	}
	slot := t.allocate()
	t.lives++
	*t.at(slot) = record{
		name: h.Key.Name, boot: h.Boot, class: h.Key.Class, state: Alive, sequence: sequence,
		started: now, lastBeat: now, life: t.lives, born: t.lives,
	}
	t.index[h.Key] = slot
	t.counts[Alive]++
	t.changes++
	t.file(slot)
	return Ref{slot: slot, life: t.lives}, Opened
}

// Restore opens the session of a holder that was last heard a while ago, in the state that follows from its silence. Known
// holders are left as they are, with the outcome Repeated; those whose session would be forgotten already are Unknown.
func (t *Table) Restore(now monotonic.Instant, s Silence) (Ref, Outcome) {
	if slot, known := t.index[s.Holder.Key]; known {
		return Ref{slot: slot, life: t.at(slot).life}, Repeated
	}
	c := &t.classes[s.Holder.Key.Class]
	silence := max(s.For, 0)
	if silence >= c.TTL+c.Retention {
		return Ref{}, Unknown
	}
	ref, outcome := t.open(now.Add(-silence), s.Holder, 0)
	if outcome != Opened {
		return ref, outcome
	}
	r := t.at(ref.slot)
	for r.state != Expired && t.due(r) <= now {
		t.move(r, r.state+1)
	}
	t.file(ref.slot)
	return ref, Opened
}

func (t *Table) takeOver(now monotonic.Instant, slot uint32, boot string, sequence uint64) Ref {
	r := t.at(slot)
	t.lives++
	r.replaced, r.boot, r.life, r.started = fingerprint(r.boot), boot, t.lives, now
	t.renew(now, slot, sequence)
	return Ref{slot: slot, life: r.life}
}

// Beat renews the session that ref names. Sequences of one connection are checked by whoever reads it.
func (t *Table) Beat(now monotonic.Instant, ref Ref, sequence uint64) Outcome {
	if outcome := t.resolve(ref); outcome != Renewed {
		return outcome
	}
	return t.renew(now, ref.slot, sequence)
}

func (t *Table) resolve(ref Ref) Outcome {
	if ref.slot >= t.used {
		return Unknown
	}
	r := t.at(ref.slot)
	switch {
	case r.life == 0 || ref.life < r.born:
		return Unknown
	case ref.life < r.life:
		return Superseded
	}
	return Renewed
}

func (t *Table) renew(now monotonic.Instant, slot uint32, sequence uint64) Outcome {
	r := t.at(slot)
	r.lastBeat = max(r.lastBeat, now)
	r.sequence = sequence
	if r.state == Alive {
		return Renewed
	}
	t.move(r, Alive)
	// Only here can the next deadline lie before the bucket that the session waits in.
	t.file(slot)
	return Recovered
}

// Release ends the holder's session. The outcome is Renewed when it was this boot's, Superseded when another boot has it, and
// Unknown when there is none.
func (t *Table) Release(h Holder) (Ref, Outcome) {
	ref, outcome := t.Find(h)
	if outcome == Renewed {
		t.forget(ref.slot)
	}
	return ref, outcome
}

// Forget ends the session that ref names, whoever has it; with a dead Ref it does nothing.
func (t *Table) Forget(ref Ref) {
	if t.resolve(ref) == Renewed {
		t.forget(ref.slot)
	}
}

// Find names the holder's session without touching it; outcomes are those of Release.
func (t *Table) Find(h Holder) (Ref, Outcome) {
	slot, known := t.index[h.Key]
	if !known {
		return Ref{}, Unknown
	}
	r := t.at(slot)
	if r.boot != h.Boot {
		return Ref{}, Superseded
	}
	return Ref{slot: slot, life: r.life}, Renewed
}

// Advance makes every transition whose time has come by now and returns them; those of one session in their order.
func (t *Table) Advance(now monotonic.Instant) []Transition {
	var made []Transition
	t.wheel.fire(now, func(slot uint32) {
		for r := t.at(slot); ; {
			if t.due(r) > now {
				t.file(slot)
				return
			}
			step := t.step(slot, r)
			made = append(made, step)
			if step.To == Gone {
				return
			}
		}
	})
	return made
}

func (t *Table) step(slot uint32, r *record) Transition {
	step := Transition{Ref: Ref{slot: slot, life: r.life}, Holder: r.holder(), From: r.state}
	switch r.state {
	case Alive:
		step.To = Suspect
	case Suspect:
		step.To = Expired
	case Expired:
		t.forget(slot)
		return step
	}
	t.move(r, step.To)
	return step
}

// due is when the state of the session ends if no beat comes.
func (t *Table) due(r *record) monotonic.Instant {
	c := &t.classes[r.class]
	switch r.state {
	case Alive:
		return r.lastBeat.Add(c.Suspect)
	case Suspect:
		return r.lastBeat.Add(c.TTL)
	}
	return r.lastBeat.Add(c.TTL + c.Retention)
}

func (t *Table) file(slot uint32) { t.wheel.file(slot, t.due(t.at(slot))) }

func (t *Table) move(r *record, to State) {
	t.counts[r.state]--
	t.counts[to]++
	r.state = to
}

func (t *Table) forget(slot uint32) {
	r := t.at(slot)
	t.wheel.remove(slot)
	t.counts[r.state]--
	t.changes++
	delete(t.index, Key{Class: r.class, Name: r.name})
	*r = record{}
	t.free = append(t.free, slot)
}

func (t *Table) allocate() uint32 {
	if n := len(t.free); n > 0 {
		slot := t.free[n-1]
		t.free = t.free[:n-1]
		return slot
	}
	if int(t.used) == len(t.blocks)*blockSize {
		t.blocks = append(t.blocks, new([blockSize]record))
	}
	t.used++
	return t.used - 1
}

func (t *Table) at(slot uint32) *record { return &t.blocks[slot/blockSize][slot%blockSize] }

func (r *record) holder() Holder {
	return Holder{Key: Key{Class: r.class, Name: r.name}, Boot: r.boot}
}

// fingerprint is FNV-1a: stable over processes, so that equal tables stay equal.
func fingerprint(s string) uint64 {
	hash := uint64(14695981039346656037)
	for i := range len(s) {
		hash ^= uint64(s[i])
		hash *= 1099511628211
	}
	return hash
}
