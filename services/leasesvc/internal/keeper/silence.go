package keeper

import (
	"context"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Silent returns the holders of a shard that have missed a beat, each with how long it has been silent, in no particular
// order. A shard that is not kept here is a NotKeptError.
func (k *Keeper) Silent(ctx context.Context, shard int) ([]session.Silence, error) {
	var (
		silent []session.Silence
		kept   bool
	)
	err := k.do(ctx, func() {
		if kept = k.kept[shard] != nil; !kept {
			return
		}
		now := k.now()
		for slot, of := range k.shards {
			if int(of) != shard {
				continue
			}
			s, _ := k.table.At(uint32(slot))
			// Half an interval more than one: a beat that is a little late is no silence.
			missed := k.cfg.Classes[s.Holder.Key.Class].Session.Interval * 3 / 2
			if silence := now.Sub(s.LastBeat); silence > missed {
				silent = append(silent, session.Silence{Holder: s.Holder, For: silence})
			}
		}
	})
	if err == nil && !kept {
		err = NotKeptError{Shard: shard}
	}
	return silent, err
}

// restore opens sessions of holders that were silent before the term.
func (k *Keeper) restore(shard int, silences []session.Silence) {
	now := k.now()
	for _, silence := range silences {
		ref, outcome := k.table.Restore(now, silence)
		if outcome != session.Opened {
			continue // there is no room, or the holder has been heard in another term
		}
		k.occupy(now, ref.Slot(), &Introduction{Holder: silence.Holder, Shard: shard})
		if s, _ := k.table.Look(ref); s.State == session.Expired {
			k.book.Silenced(now, ref.Slot())
		}
		k.note(now, ref.Slot(), session.Opened)
	}
}
