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
		kept   = true
	)
	for first, slots := 0, 1; first < slots && kept; first += stride {
		err := k.do(ctx, func() {
			slots = k.shards.Len()
			if kept = k.keeps(shard); kept {
				silent = k.silent(silent, shard, first, min(first+stride, slots))
			}
		})
		if err != nil {
			return nil, err
		}
	}
	if !kept {
		return nil, NotKeptError{Shard: shard}
	}
	return silent, nil
}

func (k *Keeper) silent(silent []session.Silence, shard, first, end int) []session.Silence {
	now := k.now()
	for slot := uint32(first); int(slot) < end; slot++ {
		if int(*k.shards.At(slot)) != shard {
			continue
		}
		s, _ := k.table.At(slot)
		// Half an interval more than one: a beat that is a little late is no silence.
		missed := k.cfg.Classes[s.Holder.Key.Class].Session.Interval * 3 / 2
		if silence := now.Sub(s.LastBeat); silence > missed {
			silent = append(silent, session.Silence{Holder: s.Holder, For: silence})
		}
	}
	return silent
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
