package sessioncontroller

import (
	"context"
	"errors"
	"sort"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// ErrForgotten says that changes are not remembered any more which a reader has not had.
var ErrCompacted = errors.New("what was deleted since is not remembered any more")

const (
	// batchEvents is how many events a reader gets at a time, and stride how many slots the owner looks at for them: few
	// enough that no beat waits longer than for a moment.
	maxEvents    = 500
	slotsPerCall = 5000
)

// EventType says what happened to a session.
type EventType uint8

const (
	// Added sessions began, or were there before.
	Added EventType = iota
	// Modified sessions changed in state, boot or last write.
	Modified
	// Deleted sessions were released or forgotten, or their shard has left. Their Lease has a holder, an epoch and what is
	// known of the object, and no times.
	Deleted
	// Bookmark is the end of what was there at the beginning. It has no Lease.
	Bookmark
)

// Event is how one session stands after it changed.
type Event struct {
	Type  EventType
	Lease Lease
	// Version is where to begin again behind this event; the zero Version where there is no such place.
	Version Version
}

// Version is a moment in the life of one Keeper. The zero Version is before everything.
type Version struct {
	// Revision counts changes, Sessions those that ever began.
	Revision, Sessions uint64
}

// Subscription is how sessions stand and what changes. The newest state of each wins: a reader that is slow skips states and
// never misses the last. Next and Close are called by one goroutine.
type Subscription struct {
	controller *Controller
	classes    []bool        // by session.ClassID; nil for all
	wake       chan struct{} // has an item when there may be something new

	// What follows belongs to the owner.
	phase    watchPhase
	listed   int     // slots that were shown, while walking
	position Version // all changes up to here have been had
	cursor   uint32  // the last slot in the list of changes that was had
}

type watchPhase uint8

const (
	// walking readers get everything there is, slot by slot.
	listing watchPhase = iota
	// seeking readers have their cursor behind their position, and go back.
	seeking
	// following readers go along the list of changes.
	following
)

// Watch subscribes to the sessions of the classes that are marked, or of all for nil. It begins behind the given Version, or
// with everything for the zero one; ErrForgotten says that this is not possible. The subscriber calls Close in the end.
func (k *Controller) Watch(ctx context.Context, classes []bool, since Version) (*Subscription, error) {
	s := &Subscription{controller: k, classes: classes, wake: make(chan struct{}, 1)}
	var refused error
	err := k.do(ctx, func() {
		c := &k.changes
		s.position, s.cursor = Version{Revision: c.revision, Sessions: k.occupancies}, c.tail
		if since != (Version{}) {
			if since.Revision < c.compacted || since.Revision > c.revision {
				refused = ErrCompacted
				return
			}
			s.phase, s.position = seeking, since
		}
		c.readers[s] = struct{}{}
	})
	if err = errors.Join(err, refused); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends a subscription. It may be repeated.
func (s *Subscription) Close() {
	// The only error is that nothing is kept any more, and the subscription is gone with it.
	_ = s.controller.do(context.Background(), func() { delete(s.controller.changes.readers, s) })
}

// Next waits for events and returns them in their order. ErrForgotten says that the reader was too slow, ErrEnded that nothing
// is kept any more.
func (s *Subscription) Next(ctx context.Context) ([]Event, error) { return s.next(ctx, nil) }

// Within is as Next, but returns no events when there were none for as long as patience; with 0, when there are none now.
func (s *Subscription) NextWithin(ctx context.Context, patience time.Duration) ([]Event, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	return s.next(ctx, timer.C)
}

func (s *Subscription) next(ctx context.Context, quiet <-chan time.Time) ([]Event, error) {
	for {
		var (
			events []Event
			more   bool
			failed error
		)
		err := s.controller.do(ctx, func() { events, more, failed = s.controller.collect(s) })
		if err = errors.Join(err, failed); err != nil {
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
		case <-quiet:
			return nil, nil
		case <-s.controller.done:
			return nil, ErrStopped
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Version is behind all events that Next has returned.
func (s *Subscription) Version(ctx context.Context) (v Version, err error) {
	err = s.controller.do(ctx, func() { v = s.position })
	return v, err
}

// collect returns what a reader gets next. With more there is something left, even if nothing was found yet.
func (k *Controller) collect(s *Subscription) (events []Event, more bool, err error) {
	switch s.phase {
	case listing:
		events = k.listExisting(s)
		return events, true, nil
	case seeking:
		k.seekPosition(s)
		return nil, true, nil
	}
	if s.position.Revision < k.changes.compacted {
		return nil, false, ErrCompacted
	}
	events, more = k.collectChanges(s)
	return events, more, nil
}

func (k *Controller) listExisting(s *Subscription) (events []Event) {
	end := min(s.listed+slotsPerCall, k.table.Slots())
	for ; s.listed < end && len(events) < maxEvents; s.listed++ {
		if view, taken := k.table.At(uint32(s.listed)); taken && s.wants(view.Holder.Key.Class) {
			events = append(events, Event{Type: Added, Lease: k.lease(view)})
		}
	}
	if s.listed >= k.table.Slots() {
		s.phase = following
		events = append(events, Event{Type: Bookmark, Version: s.position})
	}
	return events
}

func (k *Controller) seekPosition(s *Subscription) {
	for range slotsPerCall {
		if s.cursor == nowhere || k.changes.links.At(s.cursor).revision <= s.position.Revision {
			s.phase = following
			return
		}
		s.cursor = k.changes.links.At(s.cursor).previous
	}
}

// follow merges the sessions that changed with those that are gone.
func (k *Controller) collectChanges(s *Subscription) (events []Event, more bool) {
	c := &k.changes
	gone := c.deletions[sort.Search(len(c.deletions), func(i int) bool { return c.deletions[i].revision > s.position.Revision }):]
	for range slotsPerCall {
		if len(events) == maxEvents {
			return events, true
		}
		slot, changed := c.after(s.cursor)
		switch {
		case !changed && len(gone) == 0:
			// Everything that ever began has been had, so who began later is Added.
			s.position = Version{Revision: c.revision, Sessions: k.occupancies}
			return events, false
		case !changed || len(gone) > 0 && gone[0].revision < c.links.At(slot).revision:
			events = k.deleteEvent(s, events, &gone[0])
			gone = gone[1:]
		default:
			events = k.changeEvent(s, events, slot)
		}
	}
	return events, true
}

func (k *Controller) changeEvent(s *Subscription, events []Event, slot uint32) []Event {
	s.cursor, s.position.Revision = slot, k.changes.links.At(slot).revision
	view, _ := k.table.At(slot)
	if !s.wants(view.Holder.Key.Class) {
		return events
	}
	what := Modified
	if k.entries.At(slot).occupancy > s.position.Sessions {
		what = Added
	}
	return append(events, Event{Type: what, Lease: k.lease(view), Version: s.position})
}

func (k *Controller) deleteEvent(s *Subscription, events []Event, d *deletion) []Event {
	s.position.Revision = d.revision
	if !s.wants(d.holder.Key.Class) {
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

func (s *Subscription) wants(class session.ClassID) bool {
	return s.classes == nil || s.classes[class]
}
