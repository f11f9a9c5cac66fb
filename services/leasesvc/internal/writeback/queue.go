package writeback

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/slab"
)

// queue holds slots that may be written now in the order of their keys: a binary heap whose members know their place.
type queue struct{ members []member }

type member struct {
	key  monotonic.Instant
	slot uint32
}

func (m member) before(other member) bool {
	return m.key < other.key || m.key == other.key && m.slot < other.slot
}

func (q *queue) push(slots *slab.Slab[slot], m member) {
	q.members = append(q.members, m)
	q.up(slots, len(q.members)-1, m)
}

// first is the most urgent slot of a queue that is not empty.
func (q *queue) first() uint32 { return q.members[0].slot }

func (q *queue) remove(slots *slab.Slab[slot], i uint32) {
	at, last := int(slots.At(i).next), len(q.members)-1
	m := q.members[last]
	q.members = q.members[:last]
	if at < last {
		q.up(slots, q.down(slots, at, m), m)
	}
	if cap(q.members) > 4*last+1024 {
		q.members = append(make([]member, 0, 2*last), q.members...) // a crowd has passed, and its room is not needed
	}
}

// up moves the gap at a place towards the root until m fits in.
func (q *queue) up(slots *slab.Slab[slot], at int, m member) {
	for at > 0 {
		parent := (at - 1) / 2
		if !m.before(q.members[parent]) {
			break
		}
		q.put(slots, at, q.members[parent])
		at = parent
	}
	q.put(slots, at, m)
}

// down moves the gap at a place towards the leaves as long as m must not stand there.
func (q *queue) down(slots *slab.Slab[slot], at int, m member) int {
	for {
		child := 2*at + 1
		if child >= len(q.members) {
			return at
		}
		if right := child + 1; right < len(q.members) && q.members[right].before(q.members[child]) {
			child = right
		}
		if !q.members[child].before(m) {
			return at
		}
		q.put(slots, at, q.members[child])
		at = child
	}
}

func (q *queue) put(slots *slab.Slab[slot], at int, m member) {
	q.members[at] = m
	slots.At(m.slot).next = uint32(at)
}
