package keeper

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// Exchange is one message from holders and its answer. It is made to be used again and again by one connection: the slices
// of the answer are valid until the next call.
type Exchange struct {
	// Holders are heard by name: opened, taken over or renewed.
	Holders []Introduction
	// Refs are heard by reference: renewed or not.
	Refs []session.Ref
	// Sequence numbers the Refs' beats.
	Sequence uint64
	// Unordered messages may have been delayed or repeated, so their Holders' sequences are held against the last ones.
	Unordered bool

	// Met answers Holders, one by one.
	Met []Met
	// Missed are the Refs that were not renewed.
	Missed []Missed
	// Grant is what the renewed Refs got: the shortest of their classes, and the newest of their terms.
	Grant Grant
	// Renewed is how many Refs were renewed.
	Renewed int

	answered chan struct{}
}

// Introduction is a holder, its shard and the number of its beat.
type Introduction struct {
	Holder   session.Holder
	Shard    int
	Sequence uint64
	// Paced holders are as yet not taken in: one that has the session is heard, and nothing else happens.
	Paced bool
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
type Met struct {
	// Elsewhere is set when the holder's shard is not kept here. Then nothing else is.
	Elsewhere bool
	// Paced is set when the holder was to be paced. Then nothing else is.
	Paced   bool
	Outcome session.Outcome
	Ref     session.Ref
	// Name is the holder's, as the string that its session keeps: whoever remembers it remembers no other.
	Name  string
	Grant Grant
	// Renewal is what the beats that follow get.
	Renewal Grant
}

// Missed is a Ref that was not renewed: its place in Refs, and why.
type Missed struct {
	Index   int
	Outcome session.Outcome
}

// NewExchange returns an empty Exchange.
func NewExchange() *Exchange { return &Exchange{answered: make(chan struct{}, 1)} }

// Now is the receiving time for Beat; false before Run has begun.
func (k *Keeper) Now() (monotonic.Instant, bool) {
	face := k.face.Load()
	if face == nil {
		return 0, false
	}
	return face.Look(), true
}

// Beat renews the session that ref names, at a time that Now has just told, if its holder is alive. Otherwise it is false,
// and the beat is for Exchange. This is the path that nearly every heartbeat takes: it asks nobody and allocates nothing.
func (k *Keeper) Beat(now monotonic.Instant, ref session.Ref, sequence uint64) bool {
	return k.pulses.Beat(now, ref, sequence)
}

// LastBeat is when the holder of the session that ref names was last heard, by the time that Now tells; false once that life of
// it is over. It asks nobody.
func (k *Keeper) LastBeat(ref session.Ref) (monotonic.Instant, bool) { return k.pulses.LastBeat(ref) }

// Exchange has the owner take x and waits for the answer in it. After an error x is lost: the owner may still work on it.
func (k *Keeper) Exchange(ctx context.Context, x *Exchange) error {
	select {
	case k.exchanges <- x:
	case <-k.done:
		return ErrEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-x.answered:
		return nil
	case <-k.done:
		return ErrEnded
	}
}

func (k *Keeper) exchange(x *Exchange) {
	now := k.now()
	x.Met, x.Missed, x.Grant, x.Renewed = x.Met[:0], x.Missed[:0], Grant{}, 0
	for i := range x.Holders {
		x.Met = append(x.Met, k.meet(now, x, &x.Holders[i]))
	}
	for i, ref := range x.Refs {
		k.hear(now, x, i, ref)
	}
	x.answered <- struct{}{}
}

// hear takes a beat that could not go past the owner.
func (k *Keeper) hear(now monotonic.Instant, x *Exchange, index int, ref session.Ref) {
	outcome := k.table.Beat(now, ref, x.Sequence)
	if !outcome.Accepted() {
		if outcome == session.Superseded {
			k.rival(ref)
		}
		x.Missed = append(x.Missed, Missed{Index: index, Outcome: outcome})
		return
	}
	slot := ref.Slot()
	x.Renewed++
	x.Grant = x.Grant.Shorter(k.grant(slot))
	if outcome == session.Recovered {
		k.book.Recovered(now, slot)
		k.changes.touch(slot)
	}
}

func (k *Keeper) meet(now monotonic.Instant, x *Exchange, in *Introduction) Met {
	if !k.keeps(in.Shard) {
		return Met{Elsewhere: true}
	}
	if in.Paced {
		k.nod(now, in)
		return Met{Paced: true}
	}
	call := k.table.Introduce
	if x.Unordered {
		call = k.table.Renew
	}
	ref, outcome := call(now.Add(-in.Age), in.Holder, in.Sequence)
	if !outcome.Accepted() {
		if outcome == session.Superseded {
			k.rival(ref)
		}
		return Met{Outcome: outcome}
	}
	if outcome == session.Opened {
		k.occupy(now, ref.Slot(), in)
	}
	met := Met{Outcome: outcome, Ref: ref, Name: k.table.Name(ref.Slot()), Grant: k.grant(ref.Slot()), Renewal: k.grant(ref.Slot())}
	if outcome == session.Repeated {
		met.Grant.TTL = k.left(now, ref)
		return met
	}
	k.note(now, ref.Slot(), outcome)
	if !x.Unordered || outcome != session.Renewed {
		// One phase for the whole message: its holders go on beating together, and other messages at other times.
		met.Grant.Interval = k.cfg.Classes[in.Holder.Key.Class].Session.FirstInterval(x.Holders[0].Holder.Key.Name)
	}
	return met
}

// nod hears a holder that is not taken in, if it has the session: waiting for its turn must not cost its life.
func (k *Keeper) nod(now monotonic.Instant, in *Introduction) {
	if ref, outcome := k.table.Find(in.Holder); outcome == session.Renewed {
		k.note(now, ref.Slot(), k.table.Beat(now, ref, in.Sequence))
	}
}

// rival tells once per episode that two boots of one holder beat. The first refusal alone may be a straggler's.
func (k *Keeper) rival(ref session.Ref) {
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
func (k *Keeper) note(now monotonic.Instant, slot uint32, outcome session.Outcome) {
	if outcome == session.Opened {
		k.changes.touch(slot)
		return
	}
	if outcome != session.Renewed {
		k.book.Recovered(now, slot)
		k.changes.touch(slot)
	}
}

func (k *Keeper) occupy(now monotonic.Instant, slot uint32, in *Introduction) {
	k.shards.Extend(int(slot) + 1)
	k.entries.Extend(int(slot) + 1)
	k.tenants++
	k.book.Open(now, slot, writeback.Opening{
		Policy: uint8(in.Holder.Key.Class), Phase: writeback.Phase(in.Holder.Key.Name),
		Wait: k.surveys.wait(k.kept[in.Shard], now),
	})
	*k.shards.At(slot) = uint16(in.Shard)
	*k.entries.At(slot) = entry{tenant: k.tenants}
	k.recall(now, slot, in.Holder.Key)
}

// left is how long the session lives if no beat comes. Instants of beats are rounded up, so the whole TTL is the most.
func (k *Keeper) left(now monotonic.Instant, ref session.Ref) time.Duration {
	s, _ := k.table.Look(ref)
	return min(max(s.Deadline.Sub(now), 0), k.cfg.Classes[s.Holder.Key.Class].Session.TTL)
}

func (k *Keeper) grant(slot uint32) Grant {
	c := &k.cfg.Classes[k.book.Policy(slot)].Session
	return Grant{Interval: c.Interval, TTL: c.TTL, Epoch: k.epoch(slot)}
}

// Shorter is the grant that both holders can keep; the zero Grant is none yet.
func (g Grant) Shorter(other Grant) Grant {
	if g == (Grant{}) {
		return other
	}
	return Grant{Interval: min(g.Interval, other.Interval), TTL: min(g.TTL, other.TTL), Epoch: max(g.Epoch, other.Epoch)}
}
