package sessioncontroller

import (
	"context"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// enterPoll is how often it is looked whether the tenure before has left: it does so within milliseconds.
const admitPoll = 5 * time.Millisecond

// NotKeptError says that the sessions of a shard are not kept here.
type NotHeldError struct{ Shard int }

func (e NotHeldError) Error() string {
	return fmt.Sprintf("shard %d is not held here", e.Shard)
}

// Keep takes the shard's holders in until the tenure's term ends. Only those that are known to have been silent have sessions
// at once: each counts as last heard as long ago as its Silence says, so that nobody who died long before the term gets
// another grace period; who beats is heard as ever. It returns nil once the sessions have been dropped and every write made
// under the tenure has returned. When the Keeper ends before the term does, it waits for the writes as well and returns
// ErrEnded.
func (k *Controller) RunShard(t *heldshards.Shard, silences ...session.Silence) error {
	err := k.admitShard(t, silences)
	if err == nil {
		select {
		case <-t.Context().Done():
			k.dropShard(t)
		case <-k.done:
			err = ErrStopped
		}
	}
	t.Drain()
	if t.Context().Err() != nil {
		return nil
	}
	return err
}

// leave takes no more holders of the shard in, then drops those there are, a share at a time.
func (k *Controller) dropShard(t *heldshards.Shard) {
	for next, over := 0, false; !over; {
		err := k.do(context.Background(), func() {
			k.leaving[t.ID()] = true
			next, over = k.dropSessions(t, next)
		})
		if err != nil {
			return // there is nobody left who could keep anything
		}
	}
}

// enter takes the shard in, once the tenure before it has left.
func (k *Controller) admitShard(t *heldshards.Shard, silences []session.Silence) error {
	for {
		entered := false
		err := k.do(t.Context(), func() {
			if entered = k.held[t.ID()] == nil; entered {
				k.beginShard(t, silences)
			}
		})
		if err != nil || entered {
			return err
		}
		select {
		case <-t.Context().Done():
			return context.Cause(t.Context())
		case <-time.After(admitPoll):
		}
	}
}

// keeps tells whether holders of a shard are taken in.
func (k *Controller) admits(shard int) bool { return k.held[shard] != nil && !k.leaving[shard] }

// admit begins without sessions but those of the silent, whatever a tenure before this one knew.
func (k *Controller) beginShard(t *heldshards.Shard, silences []session.Silence) {
	now := k.now()
	k.held[t.ID()], k.heldSince[t.ID()] = t, now
	if k.cfg.AdoptLeases {
		k.adoptions.begin(t, now)
	}
	k.restore(t.ID(), silences)
	k.publishLeadership()
}

// dismiss drops the sessions of a shard in a share of the slots, from first on, and returns where to go on. The shard is kept
// until that is over.
func (k *Controller) dropSessions(t *heldshards.Shard, first int) (next int, over bool) {
	end := min(first+slotsPerCall, k.shards.Len())
	for slot := uint32(first); int(slot) < end; slot++ {
		if int(*k.shards.At(slot)) != t.ID() {
			continue
		}
		s, _ := k.table.At(slot)
		k.table.Forget(s.Ref)
		k.sessionGone(slot, s.Holder)
	}
	if end < k.shards.Len() {
		return end, false
	}
	k.held[t.ID()], k.leaving[t.ID()] = nil, false
	k.adoptions.end(t)
	k.publishLeadership()
	return 0, true
}

// reign lasts from the first shard to the last.
type leadership struct {
	ended chan struct{}
	// epoch is the newest of the tenures.
	epoch int64
}

// serving publishes what is kept. The channel is that of the reign before unless this is a new one.
func (k *Controller) publishLeadership() {
	last := k.leadership.Load()
	var next *leadership
	for _, t := range k.held {
		switch {
		case t == nil:
		case next == nil:
			next = &leadership{epoch: t.Epoch()}
		default:
			next.epoch = max(next.epoch, t.Epoch())
		}
	}
	switch {
	case next == nil && last != nil:
		close(last.ended)
	case next != nil && last != nil:
		next.ended = last.ended
	case next != nil:
		next.ended = make(chan struct{})
	}
	k.leadership.Store(next)
}

// Serving returns a channel that is closed when the last shard has been lost; false while there is none.
func (k *Controller) Leadership() (over <-chan struct{}, some bool) {
	if r := k.leadership.Load(); r != nil {
		return r.ended, true
	}
	return nil, false
}

// Epoch is that of the newest term of all shards kept here, 0 when there is none.
func (k *Controller) Epoch() int64 {
	if r := k.leadership.Load(); r != nil {
		return r.epoch
	}
	return 0
}

// epoch is that of the term under which the session in a slot is kept.
func (k *Controller) epoch(slot uint32) int64 { return k.held[*k.shards.At(slot)].Epoch() }
