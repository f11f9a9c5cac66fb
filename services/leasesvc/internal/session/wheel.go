package session

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Granularity is the width of a bucket of the wheel, and thereby how late a transition may be noticed.
const Granularity = 100 * time.Millisecond

const (
	// buckets spans 102 s. A deadline further away waits in the last bucket and is filed again when that comes up.
	buckets = 1024
	// nowhere ends a list and marks a slot that is in no bucket.
	nowhere = ^uint32(0)
)

// wheel files slots by the time at which they want to be looked at. Buckets are doubly linked lists through the slots, so
// that filing and removing cost the same however many slots there are.
type wheel struct {
	heads [buckets]uint32
	links []link
	// cursor counts buckets from the origin of time; all before it have been fired.
	cursor int64
}

type link struct {
	next, previous uint32
	bucket         uint32
}

func newWheel() *wheel {
	w := &wheel{}
	for i := range w.heads {
		w.heads[i] = nowhere
	}
	return w
}

// file puts the slot where it is found at due or up to one Granularity later; a slot that is filed already moves.
func (w *wheel) file(slot uint32, due monotonic.Instant) {
	for int(slot) >= len(w.links) {
		w.links = append(w.links, link{next: nowhere, previous: nowhere, bucket: nowhere})
	}
	w.remove(slot)
	number := (int64(due) + int64(Granularity) - 1) / int64(Granularity)
	number = min(max(number, w.cursor), w.cursor+buckets-1)
	bucket := uint32(number % buckets)
	head := w.heads[bucket]
	w.links[slot] = link{next: head, previous: nowhere, bucket: bucket}
	if head != nowhere {
		w.links[head].previous = slot
	}
	w.heads[bucket] = slot
}

// remove takes the slot out; one that is not filed stays so.
func (w *wheel) remove(slot uint32) {
	l := w.links[slot]
	if l.bucket == nowhere {
		return
	}
	if l.previous == nowhere {
		w.heads[l.bucket] = l.next
	} else {
		w.links[l.previous].next = l.next
	}
	if l.next != nowhere {
		w.links[l.next].previous = l.previous
	}
	w.links[slot] = link{next: nowhere, previous: nowhere, bucket: nowhere}
}

// fire empties every bucket whose time has come and shows each slot to visit, which files it again if it wants to.
func (w *wheel) fire(now monotonic.Instant, visit func(slot uint32)) {
	last := int64(now) / int64(Granularity)
	// After a jump of more than one turn every bucket is due, and once is enough.
	w.cursor = max(w.cursor, last-buckets+1)
	for w.cursor <= last {
		bucket := uint32(w.cursor % buckets)
		// The cursor moves first, so that a visit which files its slot again files it ahead of the wheel.
		w.cursor++
		w.empty(bucket, visit)
	}
}

func (w *wheel) empty(bucket uint32, visit func(slot uint32)) {
	// The list is cut off whole: a slot may be filed under the same bucket for the next turn while this one is walked.
	slot := w.heads[bucket]
	w.heads[bucket] = nowhere
	for slot != nowhere {
		next := w.links[slot].next
		w.links[slot] = link{next: nowhere, previous: nowhere, bucket: nowhere}
		visit(slot)
		slot = next
	}
}
