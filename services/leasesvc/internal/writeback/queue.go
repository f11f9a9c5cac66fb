package writeback

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// queue is a binary heap of the due slots, ordered by key. Each slot knows its index, so removal
// needs no search. container/heap calls through an interface and allocates for each push; this heap
// does neither.
type queue struct{ items []item }

type item struct {
	key  monotonic.Instant
	slot uint32
}

func (m item) before(other item) bool {
	return m.key < other.key || m.key == other.key && m.slot < other.slot
}

func (q *queue) push(slots *session.Slab[slot], m item) {
	q.items = append(q.items, m)
	q.up(slots, len(q.items)-1, m)
}

// first returns the slot with the smallest key. The queue must not be empty.
func (q *queue) first() uint32 { return q.items[0].slot }

func (q *queue) remove(slots *session.Slab[slot], i uint32) {
	at, last := int(slots.At(i).heapIndex), len(q.items)-1
	m := q.items[last]
	q.items = q.items[:last]
	if at < last {
		q.up(slots, q.down(slots, at, m), m)
	}
	if cap(q.items) > 4*last+1024 {
		q.items = append(make([]item, 0, 2*last), q.items...) // free the memory of an earlier backlog
	}
}

// up moves the gap at an index towards the root until m fits, and puts m there.
func (q *queue) up(slots *session.Slab[slot], at int, m item) {
	for at > 0 {
		parent := (at - 1) / 2
		if !m.before(q.items[parent]) {
			break
		}
		q.put(slots, at, q.items[parent])
		at = parent
	}
	q.put(slots, at, m)
}

// down moves the gap at an index towards the leaves until m fits, and returns its index.
func (q *queue) down(slots *session.Slab[slot], at int, m item) int {
	for {
		child := 2*at + 1
		if child >= len(q.items) {
			return at
		}
		if right := child + 1; right < len(q.items) && q.items[right].before(q.items[child]) {
			child = right
		}
		if !q.items[child].before(m) {
			return at
		}
		q.put(slots, at, q.items[child])
		at = child
	}
}

func (q *queue) put(slots *session.Slab[slot], at int, m item) {
	q.items[at] = m
	slots.At(m.slot).heapIndex = uint32(at)
}
