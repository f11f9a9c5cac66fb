package sessioncontroller

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// Exchange is one message from holders and its answer. It is made to be used again and again by one connection: the slices
// of the answer are valid until the next call.
type Batch struct {
	// Holders are heard by name: opened, taken over or renewed.
	Registrations []Registration
	// Refs are heard by reference: renewed or not.
	Refs []session.Ref
	// Sequence numbers the Refs' beats.
	Sequence uint64
	// Unordered messages may have been delayed or repeated, so their Holders' sequences are held against the last ones.
	Unordered bool

	// Met answers Holders, one by one.
	Results []RegisterResult
	// Missed are the Refs that were not renewed.
	Rejected []RejectedBeat
	// Grant is what the renewed Refs got: the shortest of their classes, and the newest of their terms.
	Grant Grant
	// Renewed is how many Refs were renewed.
	Renewed int

	answered chan struct{}
}

// Introduction is a holder, its shard and the number of its beat.
type Registration struct {
	Holder   session.Holder
	Shard    int
	Sequence uint64
	// Paced holders are as yet not taken in: one that has the session is heard, and nothing else happens.
	Deferred bool
	// Age is how long ago the beat was heard by somebody who handed it on.
	Age time.Duration
}

// Grant says when to beat again and how long the session lives.
type Grant struct {
	Interval, TTL time.Duration
	// Epoch is that of the term under which the beat was accepted.
	Epoch int64
}

// Met is what came of an Introduction. Ref, Name and Grant are set when the outcome is accepted.
type RegisterResult struct {
	// Elsewhere is set when the holder's shard is not kept here. Then nothing else is.
	NotHeld bool
	// Paced is set when the holder was to be paced. Then nothing else is.
	Deferred bool
	Outcome  session.Outcome
	Ref      session.Ref
	// Name is the holder's, as the string that its session keeps: whoever remembers it remembers no other.
	Name  string
	Grant Grant
	// Renewal is what the beats that follow get.
	BeatGrant Grant
}

// Missed is a Ref that was not renewed: its place in Refs, and why.
type RejectedBeat struct {
	Index   int
	Outcome session.Outcome
}

// NewExchange returns an empty Exchange.
func NewBatch() *Batch { return &Batch{answered: make(chan struct{}, 1)} }

// Now is the receiving time for Beat; false before Run has begun.
func (k *Controller) Now() (monotonic.Instant, bool) {
	face := k.reader.Load()
	if face == nil {
		return 0, false
	}
	return face.Now(), true
}

// Beat renews the session that ref names, at a time that Now has just told, if its holder is alive. Otherwise it is false,
// and the beat is for Exchange. This is the path that nearly every heartbeat takes: it asks nobody and allocates nothing.
func (k *Controller) Beat(now monotonic.Instant, ref session.Ref, sequence uint64) bool {
	return k.heartbeats.Beat(now, ref, sequence)
}

// LastBeat is when the holder of the session that ref names was last heard, by the time that Now tells; false once that life of
// it is over. It asks nobody.
func (k *Controller) LastBeat(ref session.Ref) (monotonic.Instant, bool) {
	return k.heartbeats.LastBeat(ref)
}

// Exchange has the owner take x and waits for the answer in it. After an error x is lost: the owner may still work on it.
func (k *Controller) Process(ctx context.Context, x *Batch) error {
	select {
	case k.batches <- x:
	case <-k.done:
		return ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-x.answered:
		return nil
	case <-k.done:
		return ErrStopped
	}
}

func (k *Controller) process(x *Batch) {
	now := k.now()
	x.Results, x.Rejected, x.Grant, x.Renewed = x.Results[:0], x.Rejected[:0], Grant{}, 0
	for i := range x.Registrations {
		x.Results = append(x.Results, k.register(now, x, &x.Registrations[i]))
	}
	for i, ref := range x.Refs {
		k.beatRef(now, x, i, ref)
	}
	x.answered <- struct{}{}
}

// hear takes a beat that could not go past the owner.
func (k *Controller) beatRef(now monotonic.Instant, x *Batch, index int, ref session.Ref) {
	outcome := k.table.Beat(now, ref, x.Sequence)
	if !outcome.Accepted() {
		if outcome == session.Superseded {
			k.reportDuplicate(ref)
		}
		x.Rejected = append(x.Rejected, RejectedBeat{Index: index, Outcome: outcome})
		return
	}
	slot := ref.Slot()
	x.Renewed++
	x.Grant = x.Grant.Min(k.grant(slot))
	if outcome == session.Recovered {
		k.writes.HolderRecovered(now, slot)
		k.changes.touch(slot)
	}
}

func (k *Controller) register(now monotonic.Instant, x *Batch, in *Registration) RegisterResult {
	if !k.admits(in.Shard) {
		return RegisterResult{NotHeld: true}
	}
	if in.Deferred {
		k.beatDeferred(now, in)
		return RegisterResult{Deferred: true}
	}
	call := k.table.Register
	if x.Unordered {
		call = k.table.RegisterIfNewer
	}
	ref, outcome := call(now.Add(-in.Age), in.Holder, in.Sequence)
	if !outcome.Accepted() {
		if outcome == session.Superseded {
			k.reportDuplicate(ref)
		}
		return RegisterResult{Outcome: outcome}
	}
	if outcome == session.Opened {
		k.openSlot(now, ref.Slot(), in)
	}
	met := RegisterResult{Outcome: outcome, Ref: ref, Name: k.table.Name(ref.Slot()), Grant: k.grant(ref.Slot()), BeatGrant: k.grant(ref.Slot())}
	if outcome == session.Repeated {
		met.Grant.TTL = k.remaining(now, ref)
		return met
	}
	k.outcomeChanged(now, ref.Slot(), outcome)
	if !x.Unordered || outcome != session.Renewed {
		// One phase for the whole message: its holders go on beating together, and other messages at other times.
		met.Grant.Interval = k.cfg.Classes[in.Holder.Key.Class].Session.FirstInterval(x.Registrations[0].Holder.Key.Name)
	}
	return met
}

// nod hears a holder that is not taken in, if it has the session: waiting for its turn must not cost its life.
func (k *Controller) beatDeferred(now monotonic.Instant, in *Registration) {
	if ref, outcome := k.table.Find(in.Holder); outcome == session.Renewed {
		k.outcomeChanged(now, ref.Slot(), k.table.Beat(now, ref, in.Sequence))
	}
}

// rival tells once per episode that two boots of one holder beat. The first refusal alone may be a straggler's.
func (k *Controller) reportDuplicate(ref session.Ref) {
	s, taken := k.table.At(ref.Slot())
	if !taken {
		return
	}
	d, some := k.table.Duplicate(s.Ref)
	if !some || d.Refusals != 2 {
		return
	}
	k.changes.touch(ref.Slot())
	k.cfg.Logger.Warn("two boots of one holder beat; the one introduced last keeps the session",
		"class", k.cfg.Classes[s.Holder.Key.Class].Session.Name, "holder", s.Holder.Key.Name, "kept", s.Holder.Boot, "refused", d.Boot)
	k.counts.duplicates.Add(1)
}

// note brings the write slot in line with what happened to the session.
func (k *Controller) outcomeChanged(now monotonic.Instant, slot uint32, outcome session.Outcome) {
	if outcome == session.Opened {
		k.changes.touch(slot)
		return
	}
	if outcome != session.Renewed {
		k.writes.HolderRecovered(now, slot)
		k.changes.touch(slot)
	}
}

func (k *Controller) openSlot(now monotonic.Instant, slot uint32, in *Registration) {
	k.shards.Extend(int(slot) + 1)
	k.entries.Extend(int(slot) + 1)
	k.occupancies++
	k.writes.Open(now, slot, writeback.SlotOptions{
		Policy: uint8(in.Holder.Key.Class), Phase: writeback.Phase(in.Holder.Key.Name),
		Wait: k.adoptions.writeDelay(k.held[in.Shard], now),
	})
	*k.shards.At(slot) = uint16(in.Shard)
	*k.entries.At(slot) = leaseEntry{occupancy: k.occupancies}
	k.adoptEarlier(now, slot, in.Holder.Key)
}

// left is how long the session lives if no beat comes. Instants of beats are rounded up, so the whole TTL is the most.
func (k *Controller) remaining(now monotonic.Instant, ref session.Ref) time.Duration {
	s, _ := k.table.Lookup(ref)
	return min(max(s.Deadline.Sub(now), 0), k.cfg.Classes[s.Holder.Key.Class].Session.TTL)
}

func (k *Controller) grant(slot uint32) Grant {
	c := &k.cfg.Classes[k.writes.Policy(slot)].Session
	return Grant{Interval: c.Interval, TTL: c.TTL, Epoch: k.epoch(slot)}
}

// Shorter is the grant that both holders can keep; the zero Grant is none yet.
func (g Grant) Min(other Grant) Grant {
	if g == (Grant{}) {
		return other
	}
	return Grant{Interval: min(g.Interval, other.Interval), TTL: min(g.TTL, other.TTL), Epoch: max(g.Epoch, other.Epoch)}
}
