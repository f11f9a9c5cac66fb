package sessioncontroller

import (
	"context"
	"slices"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Silent returns, for each shard that is kept here, the holders that are suspect or expired, each with how long it has been
// silent, in no particular order. A holder that is heard meanwhile may be among them or not.
func (k *Controller) Silences(ctx context.Context) (map[int][]session.Silence, error) {
	walk := &silenceScan{silent: map[int][]session.Silence{}}
	if err := k.do(ctx, func() { walk.shards = slices.Clone(k.held) }); err != nil {
		return nil, err
	}
	for first, slots := 0, 1; first < slots; first += slotsPerCall {
		err := k.do(ctx, func() {
			slots = k.shards.Len()
			k.collectSilences(walk, uint32(first), uint32(min(first+slotsPerCall, slots)))
		})
		if err != nil {
			return nil, err
		}
	}
	err := k.do(ctx, func() { k.dropEndedShards(walk) })
	return walk.silent, err
}

// silenceWalk collects the silent, and remembers under which tenures it began: those that end meanwhile are left out, for their
// holders are dropped bit by bit.
type silenceScan struct {
	shards []*heldshards.Shard
	silent map[int][]session.Silence
}

func (k *Controller) collectSilences(walk *silenceScan, first, end uint32) {
	now := k.now()
	for slot := first; slot < end; slot++ {
		shard := *k.shards.At(slot)
		// Two short columns tell of nearly everybody that there is nothing to tell.
		if shard == noShard || now.Sub(k.table.LastBeat(slot)) < k.shortestSuspect {
			continue
		}
		s, _ := k.table.At(slot)
		if silence := now.Sub(s.LastBeat); silence >= k.cfg.Classes[s.Holder.Key.Class].Session.Suspect {
			walk.silent[int(shard)] = append(walk.silent[int(shard)], session.Silence{Holder: s.Holder, For: silence})
		}
	}
}

func (k *Controller) dropEndedShards(walk *silenceScan) {
	for shard, began := range walk.shards {
		switch {
		case began == nil || began != k.held[shard] || !k.admits(shard):
			delete(walk.silent, shard)
		case walk.silent[shard] == nil:
			walk.silent[shard] = []session.Silence{}
		}
	}
}

// restore opens sessions of holders that were silent before the term.
func (k *Controller) restore(shard int, silences []session.Silence) {
	now := k.now()
	for _, silence := range silences {
		ref, outcome := k.table.Restore(now, silence)
		if outcome != session.Opened {
			continue // there is no room, or the holder has been heard in another term
		}
		k.openSlot(now, ref.Slot(), &Registration{Holder: silence.Holder, Shard: shard})
		if s, _ := k.table.Lookup(ref); s.State == session.Expired {
			k.writes.HolderExpired(now, ref.Slot())
		}
		k.outcomeChanged(now, ref.Slot(), session.Opened)
	}
}
