package session

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/slab"
)

// record is what of a slot belongs to the owner alone. A free slot has the state Gone. When its holder was last heard, and
// which life of the slot it is, stand in the pulse.
type record struct {
	name, boot string
	// sequence of the last beat that the owner took; those that came past it are in the pulse.
	sequence uint64
	started  monotonic.Instant
	// born is the generation under which the present key got the slot. A Ref from there up to the present generation was
	// superseded, and one below belongs to a session that is gone.
	born  uint32
	class ClassID
	state State
}

// Table is the sessions of one replica. It is not safe for concurrent use: one goroutine owns it. Its Pulses are for all.
type Table struct {
	classes    []Class
	limit      int
	index      *index
	records    slab.Slab[record]
	beats      slab.Slab[heartbeat]
	heartbeats Heartbeats
	others     map[uint32]*otherBoots // by slot
	free       []uint32
	wheel      *wheel
	counts     [Expired + 1]int
	changes    uint64
}

// NewTable returns an empty Table that never has more than limit sessions.
func NewTable(classes []Class, limit int) *Table {
	return &Table{classes: classes, limit: limit, index: newIndex(), others: map[uint32]*otherBoots{}, wheel: newWheel()}
}

// Pulses take the beats of sessions that are Alive, from any goroutine.
func (t *Table) Heartbeats() *Heartbeats { return &t.heartbeats }

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
// within a connection the order is given already. now is when the holder was heard: one that was heard before the present
// boot was first does not take over from it, and one of the present boot that was heard so long ago that its session would be
// what it is again moves the deadline only.
func (t *Table) Register(now monotonic.Instant, h Holder, sequence uint64) (Ref, Outcome) {
	return t.register(now, h, sequence, false)
}

// Renew opens or renews the session of a holder whose beats may arrive out of order or twice: a sequence that is not above
// the last one of the same boot that came this way or by an introduction is Repeated.
func (t *Table) RegisterIfNewer(now monotonic.Instant, h Holder, sequence uint64) (Ref, Outcome) {
	return t.register(now, h, sequence, true)
}

func (t *Table) register(now monotonic.Instant, h Holder, sequence uint64, ordered bool) (Ref, Outcome) {
	slot, known := t.index.find(h.Key, t.keyAt)
	if !known {
		return t.open(now, h, sequence)
	}
	r := t.records.At(slot)
	switch {
	case r.boot != h.Boot && (now < r.started || !t.mayTakeOver(slot, h.Boot)):
		t.refuse(now, slot, h.Boot)
		return t.ref(slot), Superseded
	case r.boot != h.Boot:
		return t.takeOver(now, slot, h.Boot, sequence), TookOver
	case ordered && sequence <= r.sequence:
		return t.ref(slot), Repeated
	}
	return t.ref(slot), t.renew(now, slot, sequence)
}

// mayTakeOver is false for boots that were replaced while the one that has the session lives, and for all when the slot has
// no further life: after 16 million takeovers the last boot keeps it until the session ends.
func (t *Table) mayTakeOver(slot uint32, boot string) bool {
	if generationIn(t.word(slot)) == lastGeneration {
		return false
	}
	return t.records.At(slot).state == Expired || !t.others[slot].wasReplaced(boot)
}

func (t *Table) open(now monotonic.Instant, h Holder, sequence uint64) (Ref, Outcome) {
	if t.index.size >= t.limit {
		return Ref{}, Full
	}
	slot := t.allocate()
	generation := generationIn(t.word(slot))
	*t.records.At(slot) = record{
		name: h.Key.Name, boot: h.Boot, class: h.Key.Class, state: Alive, sequence: sequence, started: now, born: generation,
	}
	t.set(slot, generation, true, now)
	t.beats.At(slot).sequence.Store(sequence)
	t.index.insert(h.Key, slot, t.keyAt)
	t.counts[Alive]++
	t.changes++
	t.file(slot)
	return t.ref(slot), Opened
}

// Restore opens the session of a holder that was last heard a while ago, in the state that follows from its silence. Known
// holders are left as they are, with the outcome Repeated; those whose session would be forgotten already are Unknown.
func (t *Table) Restore(now monotonic.Instant, s Silence) (Ref, Outcome) {
	if slot, known := t.index.find(s.Holder.Key, t.keyAt); known {
		return t.ref(slot), Repeated
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
	for t.records.At(ref.slot).state != Expired && t.due(ref.slot) <= now {
		t.move(ref.slot, t.word(ref.slot), t.records.At(ref.slot).state+1)
	}
	t.file(ref.slot)
	return ref, Opened
}

func (t *Table) takeOver(now monotonic.Instant, slot uint32, boot string, sequence uint64) Ref {
	r := t.records.At(slot)
	if t.others[slot] == nil {
		t.others[slot] = &otherBoots{}
	}
	t.others[slot].addReplaced(r.boot, boot)
	last := beatIn(t.word(slot))
	r.boot, r.started = boot, now
	// The beats of the old boot end with its generation, also one that is on its way at this moment.
	t.set(slot, generationIn(t.word(slot))+1, r.state == Alive, last)
	if r.state == Alive {
		t.renew(now, slot, sequence)
	} else {
		t.revive(now, slot, sequence)
	}
	return t.ref(slot)
}

// Beat renews the session that ref names. Sequences of one connection are checked by whoever reads it.
func (t *Table) Beat(now monotonic.Instant, ref Ref, sequence uint64) Outcome {
	outcome := t.resolve(ref)
	switch outcome {
	case Renewed:
		return t.renew(now, ref.slot, sequence)
	case Superseded:
		t.refuse(now, ref.slot, "")
	}
	return outcome
}

func (t *Table) resolve(ref Ref) Outcome {
	if int(ref.slot) >= t.records.Len() {
		return Unknown
	}
	r := t.records.At(ref.slot)
	switch {
	case r.state == Gone || ref.generation < r.born:
		return Unknown
	case ref.generation < generationIn(t.word(ref.slot)):
		return Superseded
	}
	return Renewed
}

func (t *Table) renew(now monotonic.Instant, slot uint32, sequence uint64) Outcome {
	if t.heartbeats.Beat(now, t.ref(slot), sequence) {
		t.records.At(slot).sequence = sequence
		return Renewed
	}
	// Nobody else writes the pulse of a session that is not Alive.
	if word := t.word(slot); t.silentSince(slot, max(beatIn(word), now)) {
		t.set(slot, generationIn(word), false, max(beatIn(word), now))
		return Renewed
	}
	t.revive(now, slot, sequence)
	return Recovered
}

// silentSince tells whether the silence after a beat is long enough for the state that the session has. Only a beat from long
// ago, which somebody else has heard, comes so late that it is.
func (t *Table) silentSince(slot uint32, beat monotonic.Instant) bool {
	r := t.records.At(slot)
	c := &t.classes[r.class]
	if r.state == Suspect {
		return beat.Add(c.Suspect) <= t.wheel.reached()
	}
	return beat.Add(c.TTL) <= t.wheel.reached()
}

// revive makes a session Alive that is not.
func (t *Table) revive(now monotonic.Instant, slot uint32, sequence uint64) {
	r, word := t.records.At(slot), t.word(slot)
	t.counts[r.state]--
	t.counts[Alive]++
	r.state, r.sequence = Alive, sequence
	t.set(slot, generationIn(word), true, max(beatIn(word), now))
	t.beats.At(slot).sequence.Store(sequence)
	// Only here can the next deadline lie before the bucket that the session waits in.
	t.file(slot)
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
	slot, known := t.index.find(h.Key, t.keyAt)
	switch {
	case !known:
		return Ref{}, Unknown
	case t.records.At(slot).boot != h.Boot:
		return Ref{}, Superseded
	}
	return t.ref(slot), Renewed
}

func (t *Table) forget(slot uint32) {
	r := t.records.At(slot)
	t.wheel.remove(slot)
	t.counts[r.state]--
	t.changes++
	t.index.remove(t.keyAt(slot), t.keyAt)
	delete(t.others, slot)
	*r = record{}
	// From the next generation on no Ref of this life is heard.
	generation := generationIn(t.word(slot))
	if generation == lastGeneration {
		t.set(slot, generation, false, 0)
		return // the slot has had all its lives
	}
	t.set(slot, generation+1, false, 0)
	t.free = append(t.free, slot)
}

func (t *Table) allocate() uint32 {
	if n := len(t.free); n > 0 {
		slot := t.free[n-1]
		t.free = t.free[:n-1]
		return slot
	}
	slot := t.records.Len()
	t.records.Extend(slot + 1)
	t.beats.Extend(slot + 1)
	t.set(uint32(slot), 1, false, 0) // so that the zero Ref names none
	if slot%slab.BlockSize == 0 {
		blocks := t.beats.Blocks()
		t.heartbeats.blocks.Store(&blocks)
	}
	return uint32(slot)
}

func (t *Table) keyAt(slot uint32) Key {
	r := t.records.At(slot)
	return Key{Class: r.class, Name: r.name}
}

func (t *Table) word(slot uint32) uint64 { return t.beats.At(slot).word.Load() }

func (t *Table) set(slot, generation uint32, alive bool, beat monotonic.Instant) {
	t.beats.At(slot).word.Store(wordOf(generation, alive, beat))
}

func (t *Table) ref(slot uint32) Ref { return Ref{slot: slot, generation: generationIn(t.word(slot))} }

func (t *Table) holder(slot uint32) Holder {
	return Holder{Key: t.keyAt(slot), Boot: t.records.At(slot).boot}
}
