package merge

import (
	"maps"
	"slices"
	"time"
)

// NewShared returns an empty state of items of which every replica tells, and the one with the highest epoch knows most.
//
// Then a replica that leaves, or begins anew, takes nothing away of which another one tells: the item stays as it was told last,
// and the next word about it counts, whoever says it. That an item is gone is believed at once, for no shard that moves is the
// reason; but only of whom knows as much as the one who told of it.
func NewShared[T Item](same func(a, b T) bool) *State[T] {
	s := New(same)
	s.shared = true
	return s
}

// outranks says whether a word about an item counts, of a replica and its epoch.
func (s *State[T]) outranks(known *slot[T], replica string, epoch int64) bool {
	return epoch >= known.epoch || s.parts[known.replica] == nil || s.shared && known.replica == replica
}

// hear notes that a replica tells of an item.
func (s *State[T]) hear(item *slot[T], replica string, round uint64) {
	if !s.shared {
		return
	}
	if item.tellers == nil {
		item.tellers = map[string]uint64{}
	}
	item.tellers[replica] = round
}

// retract takes away what a replica told before a round, or all of it: what nobody else tells of is doubted.
func (s *State[T]) retract(now time.Time, replica string, before func(round uint64) bool) {
	for place := range s.slots {
		item := &s.slots[place]
		if round, tells := item.tellers[replica]; tells && before(round) {
			delete(item.tellers, replica)
		}
		if item.replica == replica && before(item.round) && item.alive && !s.handOver(item) {
			s.suspect(now, place)
		}
	}
}

// handOver has another replica, if one tells of the item, stand for it.
func (s *State[T]) handOver(item *slot[T]) bool {
	if len(item.tellers) == 0 {
		return false
	}
	item.replica = slices.Min(slices.Collect(maps.Keys(item.tellers)))
	item.round, item.epoch = item.tellers[item.replica], 0
	return true
}
