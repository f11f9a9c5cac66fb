package session

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// BlockSize is the number of values that are allocated together.
const BlockSize = 1024

// Slab keeps one value for each slot and only grows, by one block at a time. It copies nothing, so
// pointers into it stay valid. It belongs to one goroutine. The zero Slab is empty.
type Slab[T any] struct {
	blocks []*[BlockSize]T
	length int
}

// Len returns the number of values.
func (s *Slab[T]) Len() int { return s.length }

// At returns the value of a slot, which must be below Len.
func (s *Slab[T]) At(slot uint32) *T { return &s.blocks[slot/BlockSize][slot%BlockSize] }

// Extend adds zero values until Len is at least n.
func (s *Slab[T]) Extend(n int) {
	for len(s.blocks)*BlockSize < n {
		s.blocks = append(s.blocks, new([BlockSize]T))
	}
	s.length = max(s.length, n)
}

// Blocks returns all values in order; the last block is filled up with zero values. The caller must
// not change the list. After an Extend that adds a block, Blocks returns a longer list.
func (s *Slab[T]) Blocks() []*[BlockSize]T { return s.blocks }

// none ends a list of slots.
const none = ^uint32(0)

// firstInList marks, in link.previous, the first slot of a list.
const firstInList = 1 << 31

// Wheel is a timing wheel: it files slots by deadline in buckets of one granularity. Filing and
// removing a slot take constant time, and a slot takes 8 bytes. A deadline beyond the last bucket
// is filed in the last bucket; the caller files the slot again when it fires. A Wheel belongs to
// one goroutine.
type Wheel struct {
	granularity int64
	// heads are the first slots of the lists. There is one list more than buckets.
	heads []uint32
	// lists are the numbers of the buckets' lists. drained is the number of the list that belongs
	// to no bucket.
	lists   []uint32
	drained uint32
	links   Slab[link]
	// cursor is the number of the next bucket to fire, counted from the origin of time. The slots
	// of earlier buckets have fired, except for those that are left in drained.
	cursor int64
}

// link is the place of a slot in the doubly linked list of a bucket.
type link struct {
	next uint32
	// previous is the previous slot plus one, or firstInList and the number of the list, or 0 if
	// the slot is not filed.
	previous uint32
}

// NewWheel returns an empty Wheel. The number of buckets must be a power of two. Slot numbers must
// be below 1<<31 - 1.
func NewWheel(granularity time.Duration, buckets int) *Wheel {
	w := &Wheel{
		granularity: int64(granularity), heads: make([]uint32, buckets+1), lists: make([]uint32, buckets), drained: uint32(buckets),
	}
	for i := range w.heads {
		w.heads[i] = none
	}
	for i := range w.lists {
		w.lists[i] = uint32(i)
	}
	return w
}

// list returns the number of the list of a bucket.
func (w *Wheel) list(bucket int64) *uint32 { return &w.lists[bucket&int64(len(w.lists)-1)] }

// File adds the slot, or moves it. It fires when the deadline has passed, at most one granularity
// later. A deadline in the past fires at most one granularity after File.
func (w *Wheel) File(slot uint32, deadline monotonic.Instant) {
	w.links.Extend(int(slot) + 1)
	l := w.links.At(slot)
	if l.previous != 0 {
		w.unlink(l)
	}
	bucket := (int64(deadline) + w.granularity - 1) / w.granularity
	bucket = min(max(bucket, w.cursor), w.cursor+int64(len(w.lists))-1)
	list := *w.list(bucket)
	head := w.heads[list]
	*l = link{next: head, previous: firstInList | list}
	if head != none {
		w.links.At(head).previous = slot + 1
	}
	w.heads[list] = slot
}

// Remove removes the slot. It does nothing if the slot is not filed.
func (w *Wheel) Remove(slot uint32) {
	if int(slot) >= w.links.Len() {
		return
	}
	if l := w.links.At(slot); l.previous != 0 {
		w.unlink(l)
	}
}

func (w *Wheel) unlink(l *link) {
	if l.previous&firstInList != 0 {
		w.heads[l.previous&^firstInList] = l.next
	} else {
		w.links.At(l.previous - 1).next = l.next
	}
	if l.next != none {
		w.links.At(l.next).previous = l.previous
	}
	l.previous = 0
}

// Reached returns the time up to which deadlines have fired. It is never after the time of the last
// Fire.
func (w *Wheel) Reached() monotonic.Instant {
	return monotonic.Instant((w.cursor - 1) * w.granularity)
}

// Fire removes the slots whose deadline has passed, at most limit of them, and calls visit with
// each. visit may file the slot again. Fire returns true if further slots are due.
func (w *Wheel) Fire(now monotonic.Instant, limit int, visit func(slot uint32)) (more bool) {
	last := int64(now) / w.granularity
	// After a jump of more than one turn every bucket is due; firing each once is enough.
	w.cursor = max(w.cursor, last-int64(len(w.lists))+1)
	for {
		for w.heads[w.drained] != none {
			if limit == 0 {
				return true
			}
			limit--
			slot := w.heads[w.drained]
			w.unlink(w.links.At(slot))
			visit(slot)
		}
		if w.cursor > last {
			return false
		}
		// The due list is exchanged for the empty one, because visit may file a slot in the same
		// bucket for the next turn. The cursor moves first, so that the slot is filed after it.
		list := w.list(w.cursor)
		w.cursor++
		*list, w.drained = w.drained, *list
	}
}
