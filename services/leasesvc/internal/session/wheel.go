package session

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/slab"
)

// Granularity is the width of a bucket of the wheel, and thereby how late a transition may be noticed.
const Granularity = 25 * time.Millisecond

const (
	// buckets spans 102 s. A deadline further away waits in the last bucket and is filed again when that comes up.
	buckets = 4096
	// nowhere ends a list.
	nowhere = ^uint32(0)
)

// wheel files slots by the time at which they want to be looked at. Buckets are doubly linked lists through the slots, so
// that filing and removing cost the same however many slots there are.
type wheel struct {
	// heads begin the lists; there is one more than buckets.
	heads [buckets + 1]uint32
	// lists says which list a bucket has; emptying is the one that no bucket has.
	lists    [buckets]uint16
	emptying uint16
	links    slab.Slab[link]
	// cursor counts buckets from the origin of time; all before it have been fired, but what is left of emptying.
	cursor int64
}

type link struct {
	next, previous uint32
	list           uint16
	filed          bool
}

func newWheel() *wheel {
	w := &wheel{emptying: buckets}
	for i := range w.heads {
		w.heads[i] = nowhere
	}
	for i := range w.lists {
		w.lists[i] = uint16(i)
	}
	return w
}

// file puts the slot where it is found at due or up to one Granularity later; a slot that is filed already moves.
func (w *wheel) file(slot uint32, due monotonic.Instant) {
	w.links.Extend(int(slot) + 1)
	w.remove(slot)
	number := (int64(due) + int64(Granularity) - 1) / int64(Granularity)
	number = min(max(number, w.cursor), w.cursor+buckets-1)
	list := w.lists[number%buckets]
	head := w.heads[list]
	*w.links.At(slot) = link{next: head, previous: nowhere, list: list, filed: true}
	if head != nowhere {
		w.links.At(head).previous = slot
	}
	w.heads[list] = slot
}

// reached is the time up to which deadlines have come up: never after the time that fire was told last.
func (w *wheel) reached() monotonic.Instant {
	return monotonic.Instant((w.cursor - 1) * int64(Granularity))
}

// remove takes the slot out; one that is not filed stays so.
func (w *wheel) remove(slot uint32) {
	l := w.links.At(slot)
	if !l.filed {
		return
	}
	if l.previous == nowhere {
		w.heads[l.list] = l.next
	} else {
		w.links.At(l.previous).next = l.next
	}
	if l.next != nowhere {
		w.links.At(l.next).previous = l.previous
	}
	*l = link{}
}

// fire shows the slots of every bucket whose time has come to visit, at most budget of them. A slot is taken out before it is
// shown, and filed again by visit if it wants to be. With more there are others whose time has come.
func (w *wheel) fire(now monotonic.Instant, budget int, visit func(slot uint32)) (more bool) {
	last := int64(now) / int64(Granularity)
	// After a jump of more than one turn every bucket is due, and once is enough.
	w.cursor = max(w.cursor, last-buckets+1)
	for {
		for w.heads[w.emptying] != nowhere {
			if budget == 0 {
				return true
			}
			budget--
			slot := w.heads[w.emptying]
			w.remove(slot)
			visit(slot)
		}
		if w.cursor > last {
			return false
		}
		// The list that was emptied takes the place of the one to be emptied: a slot may be filed under the same bucket for
		// the next turn while this one is walked. The cursor moves first, so that it is filed ahead of the wheel.
		bucket := w.cursor % buckets
		w.cursor++
		w.lists[bucket], w.emptying = w.emptying, w.lists[bucket]
	}
}
