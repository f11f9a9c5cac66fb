package session

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Granularity is the width of a bucket of the timing wheel. A transition is at most this late.
const Granularity = 25 * time.Millisecond

// wheelBuckets covers 102 s.
const wheelBuckets = 4096

// record is the part of a slot that only the owner uses. A free slot has the state Gone. The time
// of the last beat and the generation are in the heartbeat.
type record struct {
	name, boot string
	// sequence of the last beat that the owner took. The sequence of beats through Heartbeats is in
	// the heartbeat.
	sequence uint64
	started  monotonic.Instant
	// firstGeneration is the generation in which the current key got the slot. A Ref between it and
	// the current generation is superseded; a Ref below it belongs to a session that is gone.
	firstGeneration uint32
	class           ClassID
	state           State
}

// Table holds the sessions of one replica. It belongs to one goroutine; only its Heartbeats are
// safe for concurrent use.
type Table struct {
	classes    []Class
	limit      int
	index      *index
	records    Slab[record]
	beats      Slab[heartbeat]
	heartbeats Heartbeats
	others     map[uint32]*otherBoots // by slot
	free       []uint32
	wheel      *Wheel
	counts     [Expired + 1]int
	changes    uint64
}

// NewTable returns an empty Table for at most limit sessions.
func NewTable(classes []Class, limit int) *Table {
	return &Table{
		classes: classes, limit: limit, index: newIndex(), others: map[uint32]*otherBoots{},
		wheel: NewWheel(Granularity, wheelBuckets),
	}
}

// Heartbeats returns the part of the Table that takes beats of Alive sessions from any goroutine.
func (t *Table) Heartbeats() *Heartbeats { return &t.heartbeats }

// Registration is a beat by name.
type Registration struct {
	Holder Holder
	// Sequence may begin with any number.
	Sequence uint64
	// Received is when the beat was received, here or by the replica that forwarded it. It orders
	// the boots of a holder.
	Received monotonic.Instant
	// Observed is when the holder was last observed to be alive; not after Received. The session
	// expires as if the beat had been sent then.
	Observed monotonic.Instant
	// IfNewer is set if beats may arrive twice or out of order. The outcome is then Repeated if the
	// sequence is not above that of the last beat which the owner of the Table took from this boot.
	IfNewer bool
}

// Register opens or renews the session of a holder.
func (t *Table) Register(registration Registration) (Ref, Outcome) {
	h, sequence := registration.Holder, registration.Sequence
	slot, known := t.index.find(h.Key, t.keyAt)
	if !known {
		// An older beat would end the session at once, and its holder would register again and
		// again.
		c := &t.classes[h.Key.Class]
		observed := max(registration.Observed, registration.Received.Add(-c.TTL-c.Retention/2))
		return t.open(h, sequence, registration.Received, observed)
	}
	r := t.records.At(slot)
	switch {
	case r.boot != h.Boot && (registration.Received < r.started || !t.mayTakeOver(slot, h.Boot)):
		t.reject(registration.Received, slot, h.Boot)
		return t.ref(slot), Superseded
	case r.boot != h.Boot:
		t.takeOver(slot, &registration)
		return t.ref(slot), TookOver
	case registration.IfNewer && sequence <= r.sequence:
		return t.ref(slot), Repeated
	}
	return t.ref(slot), t.renew(registration.Observed, slot, sequence)
}

// mayTakeOver is false for a replaced boot while the current boot is not Expired. It is false for
// all boots in the last generation of the slot: after 16 million takeovers the last boot keeps the
// session until its end.
func (t *Table) mayTakeOver(slot uint32, boot string) bool {
	if generationIn(t.word(slot)) == lastGeneration {
		return false
	}
	return t.records.At(slot).state == Expired || !t.others[slot].wasReplaced(boot)
}

// takeOver gives the session to another boot. The session of a boot that was observed too long ago
// stays Suspect or Expired.
func (t *Table) takeOver(slot uint32, registration *Registration) {
	r := t.records.At(slot)
	if t.others[slot] == nil {
		t.others[slot] = &otherBoots{}
	}
	t.others[slot].addReplaced(r.boot, registration.Holder.Boot)
	r.boot, r.started = registration.Holder.Boot, registration.Received
	// The new generation ends the beats of the old boot, also a concurrent one.
	word := t.word(slot)
	t.set(slot, generationIn(word)+1, r.state == Alive, beatIn(word))
	t.renew(registration.Observed, slot, registration.Sequence)
}

// Restore opens a session of a holder in the state that follows from its silence. The outcome is
// Repeated if the holder has a session already, which stays as it is, and Unknown if the silence
// exceeds the Retention.
func (t *Table) Restore(now monotonic.Instant, s Silence) (Ref, Outcome) {
	if slot, known := t.index.find(s.Holder.Key, t.keyAt); known {
		return t.ref(slot), Repeated
	}
	c := &t.classes[s.Holder.Key.Class]
	silence := max(s.For, 0)
	if silence >= c.TTL+c.Retention {
		return Ref{}, Unknown
	}
	start := now.Add(-silence)
	ref, outcome := t.open(s.Holder, 0, start, start)
	if outcome == Opened {
		t.settle(now, ref.slot)
	}
	return ref, outcome
}

func (t *Table) open(h Holder, sequence uint64, started, observed monotonic.Instant) (Ref, Outcome) {
	if t.index.size >= t.limit {
		return Ref{}, Full
	}
	slot := t.allocate()
	generation := generationIn(t.word(slot))
	*t.records.At(slot) = record{
		name: h.Key.Name, boot: h.Boot, class: h.Key.Class, state: Alive, sequence: sequence, started: started, firstGeneration: generation,
	}
	t.set(slot, generation, true, observed)
	t.beats.At(slot).sequence.Store(sequence)
	t.index.insert(h.Key, slot, t.keyAt)
	t.counts[Alive]++
	t.changes++
	t.settle(started, slot)
	return t.ref(slot), Opened
}

// settle gives a new session the state that follows from its silence, and files it.
func (t *Table) settle(now monotonic.Instant, slot uint32) {
	r, word := t.records.At(slot), t.word(slot)
	if state := t.classes[r.class].stateAfter(now.Sub(beatIn(word))); state != Alive {
		t.setState(slot, word, state)
	}
	t.file(slot)
}

// Beat renews the session of ref, whose holder was last observed at a time that is not after now.
// The caller checks sequences.
func (t *Table) Beat(now, observed monotonic.Instant, ref Ref, sequence uint64) Outcome {
	outcome := t.resolve(ref)
	switch outcome {
	case Renewed:
		return t.renew(observed, ref.slot, sequence)
	case Superseded:
		t.reject(now, ref.slot, "")
	}
	return outcome
}

// resolve returns Renewed if the Ref is valid, otherwise Superseded or Unknown.
func (t *Table) resolve(ref Ref) Outcome {
	if int(ref.slot) >= t.records.Len() {
		return Unknown
	}
	r := t.records.At(ref.slot)
	switch {
	case r.state == Gone || ref.generation < r.firstGeneration:
		return Unknown
	case ref.generation < generationIn(t.word(ref.slot)):
		return Superseded
	}
	return Renewed
}

func (t *Table) renew(beat monotonic.Instant, slot uint32, sequence uint64) Outcome {
	r := t.records.At(slot)
	r.sequence = sequence
	if t.heartbeats.Beat(beat, t.ref(slot), sequence) {
		return Renewed
	}
	// The session is not Alive, so no other goroutine writes its word.
	word := t.word(slot)
	last := max(beatIn(word), beat)
	// An old beat may not end the silence: another replica forwarded it, or its agent observed the
	// holder long ago.
	state := min(r.state, t.classes[r.class].stateAfter(t.wheel.Reached().Sub(last)))
	t.beats.At(slot).sequence.Store(sequence)
	t.set(slot, generationIn(word), state == Alive, last)
	if state == r.state {
		return Renewed
	}
	t.counts[r.state]--
	t.counts[state]++
	r.state = state
	// Only a recovery can move the deadline before the bucket in which the session is filed.
	t.file(slot)
	return Recovered
}

// Release ends the session of the holder. The outcome is Renewed if it ended, Superseded if another
// boot has the session, and Unknown if there is none.
func (t *Table) Release(h Holder) (Ref, Outcome) {
	ref, outcome := t.Find(h)
	if outcome == Renewed {
		t.remove(ref.slot)
	}
	return ref, outcome
}

// Forget ends the session of ref. It does nothing if the Ref is invalid.
func (t *Table) Forget(ref Ref) {
	if t.resolve(ref) == Renewed {
		t.remove(ref.slot)
	}
}

// Find returns the Ref of the holder's session without renewing it. Outcomes are those of Release.
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

// Get returns the session of a key.
func (t *Table) Get(key Key) (Session, bool) {
	slot, known := t.index.find(key, t.keyAt)
	if !known {
		return Session{}, false
	}
	return t.session(slot), true
}

// Lookup returns the session of ref. It is false if the Ref is invalid.
func (t *Table) Lookup(ref Ref) (Session, bool) {
	if t.resolve(ref) != Renewed {
		return Session{}, false
	}
	return t.session(ref.slot), true
}

// At returns the session in a slot. It is false if the slot is free.
func (t *Table) At(slot uint32) (Session, bool) {
	if int(slot) >= t.records.Len() || t.records.At(slot).state == Gone {
		return Session{}, false
	}
	return t.session(slot), true
}

// Slots returns the number of slots that were ever used. At is false for all higher slots.
func (t *Table) Slots() int { return t.records.Len() }

// Name returns the name of the holder in a slot, as the string that the session keeps. The slot
// must not be free.
func (t *Table) Name(slot uint32) string { return t.records.At(slot).name }

// LastBeat returns the time of the last beat of the session in a slot. The slot must not be free.
func (t *Table) LastBeat(slot uint32) monotonic.Instant { return beatIn(t.word(slot)) }

// AppendKeys appends the keys of the sessions in the slots from first to end-1. end may exceed
// Slots.
func (t *Table) AppendKeys(keys []Key, first, end int) []Key {
	for slot := uint32(first); int(slot) < min(end, t.records.Len()); slot++ {
		if t.records.At(slot).state != Gone {
			keys = append(keys, t.keyAt(slot))
		}
	}
	return keys
}

// Changes counts the keys that were added and removed. While it is the same, so is the set of keys.
func (t *Table) Changes() uint64 { return t.changes }

// Counts returns the number of sessions by state.
func (t *Table) Counts() Counts {
	return Counts{Alive: t.counts[Alive], Suspect: t.counts[Suspect], Expired: t.counts[Expired]}
}

func (t *Table) remove(slot uint32) {
	r := t.records.At(slot)
	t.wheel.Remove(slot)
	t.counts[r.state]--
	t.changes++
	t.index.remove(t.keyAt(slot), t.keyAt)
	delete(t.others, slot)
	*r = record{}
	// The next generation invalidates all Refs of the session.
	generation := generationIn(t.word(slot))
	if generation == lastGeneration {
		t.set(slot, generation, false, 0)
		return // the slot is never reused
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
	t.set(uint32(slot), 1, false, 0) // generation 0 is that of the zero Ref
	if slot%BlockSize == 0 {
		blocks := t.beats.Blocks()
		t.heartbeats.blocks.Store(&blocks)
	}
	return uint32(slot)
}

func (t *Table) session(slot uint32) Session {
	r, word := t.records.At(slot), t.word(slot)
	beat := beatIn(word)
	return Session{
		Ref: Ref{slot: slot, generation: generationIn(word)}, Holder: t.holder(slot), State: r.state,
		Sequence: t.beats.At(slot).sequence.Load(), Started: r.started, LastBeat: beat,
		Deadline: beat.Add(t.classes[r.class].TTL),
	}
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
