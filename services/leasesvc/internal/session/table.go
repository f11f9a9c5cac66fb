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

// Register opens or renews the session of a holder. The holder may begin its sequence with any
// number.
func (t *Table) Register(now monotonic.Instant, h Holder, sequence uint64) (Ref, Outcome) {
	return t.register(now, h, sequence, false)
}

// RegisterIfNewer opens or renews the session of a holder whose beats may arrive twice or out of
// order. A sequence is Repeated if it is not above the last sequence of the same boot from Register
// or RegisterIfNewer.
func (t *Table) RegisterIfNewer(now monotonic.Instant, h Holder, sequence uint64) (Ref, Outcome) {
	return t.register(now, h, sequence, true)
}

func (t *Table) register(now monotonic.Instant, h Holder, sequence uint64, ifNewer bool) (Ref, Outcome) {
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
	case ifNewer && sequence <= r.sequence:
		return t.ref(slot), Repeated
	}
	return t.ref(slot), t.renew(now, slot, sequence)
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

func (t *Table) takeOver(now monotonic.Instant, slot uint32, boot string, sequence uint64) Ref {
	r := t.records.At(slot)
	if t.others[slot] == nil {
		t.others[slot] = &otherBoots{}
	}
	t.others[slot].addReplaced(r.boot, boot)
	last := beatIn(t.word(slot))
	r.boot, r.started = boot, now
	// The new generation ends the beats of the old boot, also a concurrent one.
	t.set(slot, generationIn(t.word(slot))+1, r.state == Alive, last)
	if r.state == Alive {
		t.renew(now, slot, sequence)
	} else {
		t.revive(now, slot, sequence)
	}
	return t.ref(slot)
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
	ref, outcome := t.open(now.Add(-silence), s.Holder, 0)
	if outcome != Opened {
		return ref, outcome
	}
	slot := ref.slot
	for t.records.At(slot).state != Expired && t.transitionTime(slot, t.word(slot)) <= now {
		t.setState(slot, t.word(slot), t.records.At(slot).state+1)
	}
	t.file(slot)
	return ref, Opened
}

func (t *Table) open(now monotonic.Instant, h Holder, sequence uint64) (Ref, Outcome) {
	if t.index.size >= t.limit {
		return Ref{}, Full
	}
	slot := t.allocate()
	generation := generationIn(t.word(slot))
	*t.records.At(slot) = record{
		name: h.Key.Name, boot: h.Boot, class: h.Key.Class, state: Alive, sequence: sequence, started: now, firstGeneration: generation,
	}
	t.set(slot, generation, true, now)
	t.beats.At(slot).sequence.Store(sequence)
	t.index.insert(h.Key, slot, t.keyAt)
	t.counts[Alive]++
	t.changes++
	t.file(slot)
	return t.ref(slot), Opened
}

// Beat renews the session of ref. The caller checks sequences.
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

func (t *Table) renew(now monotonic.Instant, slot uint32, sequence uint64) Outcome {
	if t.heartbeats.Beat(now, t.ref(slot), sequence) {
		t.records.At(slot).sequence = sequence
		return Renewed
	}
	// The session is not Alive, so no other goroutine writes its word.
	if word := t.word(slot); t.tooLate(slot, max(beatIn(word), now)) {
		t.set(slot, generationIn(word), false, max(beatIn(word), now))
		return Renewed
	}
	t.revive(now, slot, sequence)
	return Recovered
}

// tooLate reports whether the silence since a beat still justifies the state of the session. That
// happens only for an old beat, which another replica forwarded.
func (t *Table) tooLate(slot uint32, beat monotonic.Instant) bool {
	r := t.records.At(slot)
	c := &t.classes[r.class]
	if r.state == Suspect {
		return beat.Add(c.Suspect) <= t.wheel.Reached()
	}
	return beat.Add(c.TTL) <= t.wheel.Reached()
}

// revive makes a Suspect or Expired session Alive.
func (t *Table) revive(now monotonic.Instant, slot uint32, sequence uint64) {
	r, word := t.records.At(slot), t.word(slot)
	t.counts[r.state]--
	t.counts[Alive]++
	r.state, r.sequence = Alive, sequence
	t.set(slot, generationIn(word), true, max(beatIn(word), now))
	t.beats.At(slot).sequence.Store(sequence)
	// Only a revival can move the deadline before the bucket in which the session is filed.
	t.file(slot)
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
