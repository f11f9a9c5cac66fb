package keeper

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/column"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/leaseobject"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

const (
	// departures is how many sessions that are gone are remembered for those who watch.
	departures = 1 << 17
	// nowhere ends the list of changes.
	nowhere = ^uint32(0)
)

// changes are the sessions in the order of their last change, and those that are gone in the order in which they went. A
// session that changes again moves to the end, so the list is never longer than there are sessions, however slow a reader is.
type changes struct {
	// revision counts changes; that of a session is what it was at its last one.
	revision   uint64
	links      column.Column[change] // by slot
	head, tail uint32
	// gone is in the order of revisions, and forgotten the revision of the newest that was dropped from it.
	gone      []departure
	forgotten uint64
	// readers are somewhere in the list.
	readers map[*Subscription]struct{}
}

// change is the place of a slot in the list; with revision 0 it is in none.
type change struct {
	revision       uint64
	next, previous uint32
}

// departure is a session that is gone.
type departure struct {
	revision uint64
	holder   session.Holder
	epoch    int64
	shard    uint16
	object   leaseobject.Known
}

func newChanges() changes {
	return changes{head: nowhere, tail: nowhere, readers: map[*Subscription]struct{}{}}
}

// touch moves a slot to the end, because it changed.
func (c *changes) touch(slot uint32) {
	c.links.Extend(int(slot) + 1)
	c.leave(slot)
	c.revision++
	*c.links.At(slot) = change{revision: c.revision, next: nowhere, previous: c.tail}
	if c.tail == nowhere {
		c.head = slot
	} else {
		c.links.At(c.tail).next = slot
	}
	c.tail = slot
	c.wake()
}

// depart takes a slot out whose session is gone.
func (c *changes) depart(slot uint32, d departure) {
	c.leave(slot)
	c.revision++
	d.revision = c.revision
	if len(c.gone) == departures {
		// Half of them at once, so that a departure costs nothing on average.
		c.forgotten = c.gone[departures/2-1].revision
		c.gone = append(make([]departure, 0, departures), c.gone[departures/2:]...)
	}
	c.gone = append(c.gone, d)
	c.wake()
}

// leave unlinks a slot. Readers that stood on it stand on the one before: all up to there they have had.
func (c *changes) leave(slot uint32) {
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
	*l = change{}
}

func (c *changes) wake() {
	for reader := range c.readers {
		select {
		case reader.fresh <- struct{}{}:
		default: // it knows already
		}
	}
}

// after is the slot behind a cursor; false at the end.
func (c *changes) after(cursor uint32) (uint32, bool) {
	next := c.head
	if cursor != nowhere {
		next = c.links.At(cursor).next
	}
	return next, next != nowhere
}
