package keeper

import (
	"context"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/tenure"
)

// enterPoll is how often it is looked whether the tenure before has left: it does so within milliseconds.
const enterPoll = 5 * time.Millisecond

// NotKeptError says that the sessions of a shard are not kept here.
type NotKeptError struct{ Shard int }

func (e NotKeptError) Error() string {
	return fmt.Sprintf("shard %d is not held here", e.Shard)
}

// Keep takes the shard's holders in until the tenure's term ends. Only those that are known to have been silent have sessions
// at once: each counts as last heard as long ago as its Silence says, so that nobody who died long before the term gets
// another grace period; who beats is heard as ever. It returns nil once the sessions have been dropped and every write made
// under the tenure has returned. When the Keeper ends before the term does, it waits for the writes as well and returns
// ErrEnded.
func (k *Keeper) Keep(t *tenure.Tenure, silences ...session.Silence) error {
	err := k.enter(t, silences)
	if err == nil {
		select {
		case <-t.Context().Done():
			k.leave(t)
		case <-k.done:
			err = ErrEnded
		}
	}
	t.Finish()
	if t.Context().Err() != nil {
		return nil
	}
	return err
}

// leave takes no more holders of the shard in, then drops those there are, a share at a time.
func (k *Keeper) leave(t *tenure.Tenure) {
	for next, over := 0, false; !over; {
		err := k.do(context.Background(), func() {
			k.leaving[t.Shard()] = true
			next, over = k.dismiss(t, next)
		})
		if err != nil {
			return // there is nobody left who could keep anything
		}
	}
}

// enter takes the shard in, once the tenure before it has left.
func (k *Keeper) enter(t *tenure.Tenure, silences []session.Silence) error {
	for {
		entered := false
		err := k.do(t.Context(), func() {
			if entered = k.kept[t.Shard()] == nil; entered {
				k.admit(t, silences)
			}
		})
		if err != nil || entered {
			return err
		}
		select {
		case <-t.Context().Done():
			return context.Cause(t.Context())
		case <-time.After(enterPoll):
		}
	}
}

// keeps tells whether holders of a shard are taken in.
func (k *Keeper) keeps(shard int) bool { return k.kept[shard] != nil && !k.leaving[shard] }

// admit begins without sessions but those of the silent, whatever a tenure before this one knew.
func (k *Keeper) admit(t *tenure.Tenure, silences []session.Silence) {
	now := k.now()
	k.kept[t.Shard()], k.since[t.Shard()] = t, now
	if k.cfg.Surveys {
		k.surveys.begin(t, now)
	}
	k.restore(t.Shard(), silences)
	k.serving()
}

// dismiss drops the sessions of a shard in a share of the slots, from first on, and returns where to go on. The shard is kept
// until that is over.
func (k *Keeper) dismiss(t *tenure.Tenure, first int) (next int, over bool) {
	end := min(first+stride, k.shards.Len())
	for slot := uint32(first); int(slot) < end; slot++ {
		if int(*k.shards.At(slot)) != t.Shard() {
			continue
		}
		s, _ := k.table.At(slot)
		k.table.Forget(s.Ref)
		k.vacate(slot, s.Holder)
	}
	if end < k.shards.Len() {
		return end, false
	}
	k.kept[t.Shard()], k.leaving[t.Shard()] = nil, false
	k.surveys.end(t)
	k.serving()
	return 0, true
}

// reign lasts from the first shard to the last.
type reign struct {
	over chan struct{}
	// epoch is the newest of the tenures.
	epoch int64
}

// serving publishes what is kept. The channel is that of the reign before unless this is a new one.
func (k *Keeper) serving() {
	last := k.reign.Load()
	var next *reign
	for _, t := range k.kept {
		switch {
		case t == nil:
		case next == nil:
			next = &reign{epoch: t.Epoch()}
		default:
			next.epoch = max(next.epoch, t.Epoch())
		}
	}
	switch {
	case next == nil && last != nil:
		close(last.over)
	case next != nil && last != nil:
		next.over = last.over
	case next != nil:
		next.over = make(chan struct{})
	}
	k.reign.Store(next)
}

// Serving returns a channel that is closed when the last shard has been lost; false while there is none.
func (k *Keeper) Serving() (over <-chan struct{}, some bool) {
	if r := k.reign.Load(); r != nil {
		return r.over, true
	}
	return nil, false
}

// Epoch is that of the newest term of all shards kept here, 0 when there is none.
func (k *Keeper) Epoch() int64 {
	if r := k.reign.Load(); r != nil {
		return r.epoch
	}
	return 0
}

// epoch is that of the term under which the session in a slot is kept.
func (k *Keeper) epoch(slot uint32) int64 { return k.kept[*k.shards.At(slot)].Epoch() }
