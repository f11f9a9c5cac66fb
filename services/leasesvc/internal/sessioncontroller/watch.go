package sessioncontroller

import (
	"context"
	"errors"
	"sort"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// ErrCompacted is returned to a watcher that has missed deletions which are no longer kept. The
// watcher must start again with the zero Version.
var ErrCompacted = errors.New("changes since the requested version are no longer available")

// maxEvents is the number of events that a watcher gets at a time.
const maxEvents = 500

// EventType is the type of an Event.
type EventType uint8

const (
	// Added sessions began, or existed when the watch began.
	Added EventType = iota
	// Modified sessions changed their state, their boot or the state of their Lease.
	Modified
	// Deleted sessions are gone. The Lease of the event has a holder, an epoch, a shard and the
	// last object, but no times.
	Deleted
	// Bookmark follows the sessions that existed when the watch began. It has no Lease.
	Bookmark
)

// Event is the state of one session after a change.
type Event struct {
	Type  EventType
	Lease Lease
	// Version resumes a watch after this event. It is zero for events before the first Bookmark.
	Version Version
}

// Version is a position in the changes of one Controller. The zero Version is before all changes.
type Version struct {
	// Revision counts changes, Sessions counts sessions that began.
	Revision, Sessions uint64
}

// Subscription is one watch. It returns the newest state of each session: a slow watcher skips
// states, but never the last one. One goroutine calls its methods.
type Subscription struct {
	controller *Controller
	classes    []bool        // by session.ClassID; nil for all
	wake       chan struct{} // has an item if there may be a change

	// The owner of the sessions owns the fields below.
	phase    watchPhase
	listed   int     // slots that were listed
	position Version // all changes up to here were returned
	cursor   uint32  // the last returned slot in the list of changes
}

// watchPhase is the phase of a Subscription. A new watch begins with listing, a resumed one with
// seeking.
type watchPhase uint8

const (
	// listing returns the existing sessions by slot.
	listing watchPhase = iota
	// seeking moves the cursor back to the position.
	seeking
	// following returns the changes after the cursor.
	following
)

// Watch subscribes to the sessions of the selected classes; nil selects all. It begins after the
// given Version, or with all existing sessions for the zero Version. It fails with ErrCompacted if
// it cannot begin after the Version. The caller must Close the subscription.
func (c *Controller) Watch(ctx context.Context, classes []bool, since Version) (*Subscription, error) {
	s := &Subscription{controller: c, classes: classes, wake: make(chan struct{}, 1)}
	var failure error
	err := c.do(ctx, func() {
		l := &c.changes
		s.position, s.cursor = Version{Revision: l.revision, Sessions: c.occupancies}, l.tail
		if since != (Version{}) {
			if since.Revision < l.compacted || since.Revision > l.revision {
				failure = ErrCompacted
				return
			}
			s.phase, s.position = seeking, since
		}
		l.watchers[s] = struct{}{}
	})
	if err = errors.Join(err, failure); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends a subscription. It may be repeated.
func (s *Subscription) Close() {
	// The only error is ErrStopped; all subscriptions are gone then.
	_ = s.controller.do(context.Background(), func() { delete(s.controller.changes.watchers, s) })
}

// Next blocks until there are events and returns them in order. It fails with ErrCompacted if the
// watcher was too slow.
func (s *Subscription) Next(ctx context.Context) ([]Event, error) { return s.next(ctx, nil) }

// NextWithin is as Next, but returns no events if none comes within the timeout. With timeout 0 it
// does not wait.
func (s *Subscription) NextWithin(ctx context.Context, timeout time.Duration) ([]Event, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	return s.next(ctx, timer.C)
}

func (s *Subscription) next(ctx context.Context, timeout <-chan time.Time) ([]Event, error) {
	for {
		var (
			events  []Event
			more    bool
			failure error
		)
		err := s.controller.do(ctx, func() { events, more, failure = s.controller.collect(s) })
		if err = errors.Join(err, failure); err != nil {
			return nil, err
		}
		if len(events) > 0 {
			return events, nil
		}
		if more {
			continue
		}
		select {
		case <-s.wake:
		case <-timeout:
			return nil, nil
		case <-s.controller.done:
			return nil, ErrStopped
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Bookmark returns an event with the Version after all returned events.
func (s *Subscription) Bookmark(ctx context.Context) (Event, error) {
	bookmark := Event{Type: Bookmark}
	err := s.controller.do(ctx, func() { bookmark.Version = s.position })
	return bookmark, err
}

func (s *Subscription) selects(class session.ClassID) bool {
	return s.classes == nil || s.classes[class]
}

// collect returns the next events. more reports whether to call it again, also if there are no
// events yet.
func (c *Controller) collect(s *Subscription) (events []Event, more bool, err error) {
	switch s.phase {
	case listing:
		return c.listExisting(s), true, nil
	case seeking:
		c.seekPosition(s)
		return nil, true, nil
	}
	if s.position.Revision < c.changes.compacted {
		return nil, false, ErrCompacted
	}
	events, more = c.collectChanges(s)
	return events, more, nil
}

func (c *Controller) listExisting(s *Subscription) (events []Event) {
	end := min(s.listed+slotsPerCall, c.table.Slots())
	for ; s.listed < end && len(events) < maxEvents; s.listed++ {
		if view, ok := c.table.At(uint32(s.listed)); ok && s.selects(view.Holder.Key.Class) {
			events = append(events, Event{Type: Added, Lease: c.lease(view)})
		}
	}
	if s.listed >= c.table.Slots() {
		s.phase = following
		events = append(events, Event{Type: Bookmark, Version: s.position})
	}
	return events
}

func (c *Controller) seekPosition(s *Subscription) {
	for range slotsPerCall {
		if s.cursor == noSlot || c.changes.links.At(s.cursor).revision <= s.position.Revision {
			s.phase = following
			return
		}
		s.cursor = c.changes.links.At(s.cursor).previous
	}
}

// collectChanges merges changed sessions and deletions by revision.
func (c *Controller) collectChanges(s *Subscription) (events []Event, more bool) {
	l := &c.changes
	deletions := l.deletions[sort.Search(len(l.deletions), func(i int) bool { return l.deletions[i].revision > s.position.Revision }):]
	for range slotsPerCall {
		if len(events) == maxEvents {
			return events, true
		}
		slot, changed := l.next(s.cursor)
		switch {
		case !changed && len(deletions) == 0:
			// All sessions that ever began were returned, so a later session is Added.
			s.position = Version{Revision: l.revision, Sessions: c.occupancies}
			return events, false
		case !changed || len(deletions) > 0 && deletions[0].revision < l.links.At(slot).revision:
			events = c.appendDeletion(s, events, &deletions[0])
			deletions = deletions[1:]
		default:
			events = c.appendChange(s, events, slot)
		}
	}
	return events, true
}

func (c *Controller) appendChange(s *Subscription, events []Event, slot uint32) []Event {
	s.cursor, s.position.Revision = slot, c.changes.links.At(slot).revision
	view, _ := c.table.At(slot)
	if !s.selects(view.Holder.Key.Class) {
		return events
	}
	eventType := Modified
	if c.entries.At(slot).occupancy > s.position.Sessions {
		eventType = Added
	}
	return append(events, Event{Type: eventType, Lease: c.lease(view), Version: s.position})
}

func (c *Controller) appendDeletion(s *Subscription, events []Event, d *deletion) []Event {
	s.position.Revision = d.revision
	if !s.selects(d.holder.Key.Class) {
		return events
	}
	lease := Lease{
		Holder: d.holder, State: session.Gone, Epoch: d.epoch, Shard: int(d.shard),
		Write: WriteStatus{State: writeback.Pending, RenewTime: d.lease.RenewTime(), ResourceVersion: d.lease.ResourceVersion()},
	}
	if lease.Write.ResourceVersion != "" {
		lease.Write.State, lease.Write.Reason = writeback.Written, writeback.Renewal
	}
	return append(events, Event{Type: Deleted, Lease: lease, Version: s.position})
}
