package sessioncontroller

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/slab"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

const (
	// departures is how many sessions that are gone are remembered for those who watch.
	maxDeletions = 1 << 17
	// nowhere ends the list of changes.
	nowhere = ^uint32(0)
)

// changes are the sessions in the order of their last change, and those that are gone in the order in which they went. A
// session that changes again moves to the end, so the list is never longer than there are sessions, however slow a reader is.
type changeList struct {
	// revision counts changes; that of a session is what it was at its last one.
	revision   uint64
	links      slab.Slab[changeLink] // by slot
	head, tail uint32
	// gone is in the order of revisions, and forgotten the revision of the newest that was dropped from it.
	deletions []deletion
	compacted uint64
	// readers are somewhere in the list.
	readers map[*Subscription]struct{}
}

// change is the place of a slot in the list; with revision 0 it is in none.
type changeLink struct {
	revision       uint64
	next, previous uint32
}

// departure is a session that is gone.
type deletion struct {
	revision uint64
	holder   session.Holder
	epoch    int64
	shard    uint16
	lease    writeback.LeaseRecord
}

func newChangeList() changeList {
	return changeList{head: nowhere, tail: nowhere, readers: map[*Subscription]struct{}{}}
}

// touch moves a slot to the end, because it changed.
func (c *changeList) touch(slot uint32) {
	c.links.Extend(int(slot) + 1)
	c.unlink(slot)
	c.revision++
	*c.links.At(slot) = changeLink{revision: c.revision, next: nowhere, previous: c.tail}
	if c.tail == nowhere {
		c.head = slot
	} else {
		c.links.At(c.tail).next = slot
	}
	c.tail = slot
	c.wake()
}

// depart takes a slot out whose session is gone.
func (c *changeList) delete(slot uint32, d deletion) {
	c.unlink(slot)
	c.revision++
	d.revision = c.revision
	if len(c.deletions) == maxDeletions {
		// Half of them at once, so that a departure costs nothing on average.
		c.compacted = c.deletions[maxDeletions/2-1].revision
		c.deletions = append(make([]deletion, 0, maxDeletions), c.deletions[maxDeletions/2:]...)
	}
	c.deletions = append(c.deletions, d)
	c.wake()
}

// leave unlinks a slot. Readers that stood on it stand on the one before: all up to there they have had.
func (c *changeList) unlink(slot uint32) {
	l := c.links.At(slot)
	if l.revision == 0 {
		return
	}
	for reader := range c.readers {
		if reader.cursor == slot {
			reader.cursor = l.previous
		}
	}
	if l.previous == nowhere {
		c.head = l.next
	} else {
		c.links.At(l.previous).next = l.next
	}
	if l.next == nowhere {
		c.tail = l.previous
	} else {
		c.links.At(l.next).previous = l.previous
	}
	*l = changeLink{}
}

func (c *changeList) wake() {
	for reader := range c.readers {
		select {
		case reader.wake <- struct{}{}:
		default: // it knows already
		}
	}
}

// after is the slot behind a cursor; false at the end.
func (c *changeList) after(cursor uint32) (uint32, bool) {
	next := c.head
	if cursor != nowhere {
		next = c.links.At(cursor).next
	}
	return next, next != nowhere
}
