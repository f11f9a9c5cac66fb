package keeper

import (
	"context"
	"slices"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/tenure"
)

// Silent returns, for each shard that is kept here, the holders that are suspect or expired, each with how long it has been
// silent, in no particular order. A holder that is heard meanwhile may be among them or not.
func (k *Keeper) Silent(ctx context.Context) (map[int][]session.Silence, error) {
	walk := &silenceWalk{silent: map[int][]session.Silence{}}
	if err := k.do(ctx, func() { walk.tenures = slices.Clone(k.kept) }); err != nil {
		return nil, err
	}
	for first, slots := 0, 1; first < slots; first += stride {
		err := k.do(ctx, func() {
			slots = k.shards.Len()
			k.gather(walk, uint32(first), uint32(min(first+stride, slots)))
		})
		if err != nil {
			return nil, err
		}
	}
	err := k.do(ctx, func() { k.confirm(walk) })
	return walk.silent, err
}

// silenceWalk collects the silent, and remembers under which tenures it began: those that end meanwhile are left out, for their
// holders are dropped bit by bit.
type silenceWalk struct {
	tenures []*tenure.Tenure
	silent  map[int][]session.Silence
}

func (k *Keeper) gather(walk *silenceWalk, first, end uint32) {
	now := k.now()
	for slot := first; slot < end; slot++ {
		shard := *k.shards.At(slot)
		// Two short columns tell of nearly everybody that there is nothing to tell.
		if shard == noShard || now.Sub(k.table.LastBeat(slot)) < k.shortest {
			continue
		}
		s, _ := k.table.At(slot)
		if silence := now.Sub(s.LastBeat); silence >= k.cfg.Classes[s.Holder.Key.Class].Session.Suspect {
			walk.silent[int(shard)] = append(walk.silent[int(shard)], session.Silence{Holder: s.Holder, For: silence})
		}
	}
}

func (k *Keeper) confirm(walk *silenceWalk) {
	for shard, began := range walk.tenures {
		switch {
		case began == nil || began != k.kept[shard] || !k.keeps(shard):
			delete(walk.silent, shard)
		case walk.silent[shard] == nil:
			walk.silent[shard] = []session.Silence{}
		}
	}
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
