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
}

// Grant says when to beat again and how long the session lives.
type Grant struct {
	Interval, TTL time.Duration
	// Epoch is that of the term under which the beat was accepted.
	Epoch int64
}

// Met is what came of an Introduction. Ref and Grant are set when the outcome is accepted.
type Met struct {
	// Elsewhere is set when the holder's shard is not kept here. Then nothing else is.
	Elsewhere bool
	Outcome   session.Outcome
	Ref       session.Ref
	Grant     Grant
}

// Missed is a Ref that was not renewed: its place in Refs, and why.
type Missed struct {
	Index   int
	Outcome session.Outcome
}

// NewExchange returns an empty Exchange.
func NewExchange() *Exchange { return &Exchange{answered: make(chan struct{}, 1)} }

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

// hear is the path that a heartbeat takes: it must stay short and allocate nothing.
func (k *Keeper) hear(now monotonic.Instant, x *Exchange, index int, ref session.Ref) {
	outcome := k.table.Beat(now, ref, x.Sequence)
	if !outcome.Accepted() {
		x.Missed = append(x.Missed, Missed{Index: index, Outcome: outcome})
		return
	}
	slot := ref.Slot()
	x.Renewed++
	x.Grant = x.Grant.shorter(k.grant(slot))
	if outcome == session.Recovered {
		k.book.Recovered(now, slot)
		k.announce(Modified, slot)
	}
}

func (k *Keeper) meet(now monotonic.Instant, x *Exchange, in *Introduction) Met {
	if k.kept[in.Shard] == nil {
		return Met{Elsewhere: true}
	}
	call := k.table.Introduce
	if x.Unordered {
		call = k.table.Renew
	}
	ref, outcome := call(now, in.Holder, in.Sequence)
	if !outcome.Accepted() {
		return Met{Outcome: outcome}
	}
	if outcome == session.Opened {
		k.occupy(now, ref.Slot(), in)
	}
	met := Met{Outcome: outcome, Ref: ref, Grant: k.grant(ref.Slot())}
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

// note brings the write slot in line with what happened to the session.
func (k *Keeper) note(now monotonic.Instant, slot uint32, outcome session.Outcome) {
	if outcome == session.Opened {
		k.announce(Added, slot)
		return
	}
	if outcome != session.Renewed {
		k.book.Recovered(now, slot)
		k.announce(Modified, slot)
	}
}

func (k *Keeper) occupy(now monotonic.Instant, slot uint32, in *Introduction) {
	for int(slot) >= len(k.shards) {
		k.shards = append(k.shards, noShard)
		k.entries = append(k.entries, entry{})
	}
	k.tenants++
	k.book.Open(now, slot, writeback.Opening{
		Policy: uint8(in.Holder.Key.Class), Phase: writeback.Phase(in.Holder.Key.Name),
		Wait: k.surveys.wait(k.kept[in.Shard], now),
	})
	k.shards[slot] = uint16(in.Shard)
	k.entries[slot] = entry{tenant: k.tenants}
	k.recall(now, slot, in.Holder.Key)
}

// left is how long the session lives if no beat comes.
func (k *Keeper) left(now monotonic.Instant, ref session.Ref) time.Duration {
	s, _ := k.table.Look(ref)
	return max(s.Deadline.Sub(now), 0)
}

func (k *Keeper) grant(slot uint32) Grant {
	c := &k.cfg.Classes[k.book.Policy(slot)].Session
	return Grant{Interval: c.Interval, TTL: c.TTL, Epoch: k.epoch(slot)}
}

// shorter is the grant that both holders can keep; the zero Grant is none yet.
func (g Grant) shorter(other Grant) Grant {
	if g == (Grant{}) {
		return other
	}
	return Grant{Interval: min(g.Interval, other.Interval), TTL: min(g.TTL, other.TTL), Epoch: max(g.Epoch, other.Epoch)}
}
