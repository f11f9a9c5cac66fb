package sessioncontroller

import (
	"context"
	"errors"
	"sort"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

var (
	// ErrCompacted means that no watch can begin after a Version. The watcher must start again with
	// the zero Version.
	ErrCompacted = errors.New("changes since the requested version are no longer available")
	// ErrTooSlow is returned to a watcher that has missed deletions which are no longer kept.
	ErrTooSlow = errors.New("the watcher does not read as fast as sessions end")
)

// maxEvents is the number of events that a watcher gets at a time.
const maxEvents = 500

// EventType is the type of an Event.
type EventType uint8

const (
	// Added sessions began, are newly selected, or existed when the watch began.
	Added EventType = iota
	// Modified sessions changed their state, their boot or the state of their Lease.
	Modified
	// Deleted sessions are gone, or are not selected any more. The Lease of the event has at least
	// a holder, an epoch and a shard.
	Deleted
	// Bookmark says which shards the watcher knows wholly. It has no Lease.
	Bookmark
)

// Event is the state of one session after a change.
type Event struct {
	Type  EventType
	Lease Lease
	// ShardLost marks a Deleted session whose shard was lost. It may continue at another replica.
	ShardLost bool
	// Shards are set on a Bookmark: the watcher was sent all of their sessions.
	Shards ServedShards
	// InitialEnd marks the first Bookmark: all sessions that existed at the start were sent.
	InitialEnd bool
	// Version resumes a watch after this event. It is zero for events before the first Bookmark of
	// a watch from the start.
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
	selection  Selection
	since      Version
	wake       chan struct{} // has an item if there may be a change

	// The owner of the sessions owns the fields below.
	phase    watchPhase
	listed   int     // slots that were listed
	position Version // all changes up to here were returned
	cursor   uint32  // the last returned slot in the list of changes
	known    []knowledge
	bookmarks
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

// knowledge is what a watcher knows of the session in a slot.
type knowledge uint8

const (
	// unsaid: nothing was sent in this watch. A resumed watcher may know the session.
	unsaid knowledge = iota
	// has: the session was sent.
	has
	// lacks: the session was not sent, or was deleted.
	lacks
)

// Watch subscribes to the selected sessions. It begins after the given Version, or with all
// existing sessions for the zero Version. It fails with ErrCompacted if it cannot begin after the
// Version. The caller must Close the subscription.
func (c *Controller) Watch(ctx context.Context, selection Selection, since Version) (*Subscription, error) {
	s := &Subscription{controller: c, selection: selection, since: since, wake: make(chan struct{}, 1)}
	var failure error
	err := c.do(ctx, func() {
		l := &c.changes
		s.position, s.cursor = c.position(), l.tail
		s.bookmarks = bookmarks{pending: c.servedShards(), target: l.revision, shardChanges: l.shardChanges}
		if s.resumed() {
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

// position returns the Version of now.
func (c *Controller) position() Version {
	return Version{Revision: c.changes.revision, Sessions: c.occupancies}
}

func (s *Subscription) resumed() bool { return s.since != Version{} }

// Close ends a subscription. It may be repeated.
func (s *Subscription) Close() {
	// The only error is ErrStopped; all subscriptions are gone then.
	_ = s.controller.do(context.Background(), func() { delete(s.controller.changes.watchers, s) })
}

// Next blocks until there are events and returns them in order. It fails with ErrTooSlow if the
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

// collect returns the next events. more reports whether to call it again, also if there are no
// events yet.
func (c *Controller) collect(s *Subscription) (events []Event, more bool, err error) {
	switch s.phase {
	case listing:
		events, more = c.listExisting(s), true
	case seeking:
		c.seekPosition(s)
		more = true
	case following:
		if s.position.Revision < c.changes.compacted {
			return nil, false, ErrTooSlow
		}
		events, more = c.collectChanges(s)
	}
	if bookmark, due := c.dueBookmark(s); due {
		events = append(events, bookmark)
	}
	return events, more, nil
}

// listExisting skips sessions that began after the watch: they are among the changes.
func (c *Controller) listExisting(s *Subscription) (events []Event) {
	end := min(s.listed+slotsPerCall, c.table.Slots())
	for ; s.listed < end && len(events) < maxEvents; s.listed++ {
		slot := uint32(s.listed)
		view, ok := c.table.At(slot)
		if ok && c.entries.At(slot).occupancy <= s.position.Sessions && s.selects(view) {
			events = append(events, Event{Type: Added, Lease: c.lease(view)})
			s.learn(slot, has)
		}
	}
	if s.listed >= c.table.Slots() {
		s.phase = following
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
			s.position = c.position()
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
	if !s.selection.class(view.Holder.Key.Class) {
		return events
	}
	event := Event{Type: Added, Version: s.position}
	before := s.learn(slot, lacks)
	switch {
	case s.selects(view):
		s.learn(slot, has)
		if before == has || before == unsaid && c.entries.At(slot).occupancy <= s.since.Sessions {
			event.Type = Modified
		}
	case s.mayHave(before):
		event.Type = Deleted
	default:
		return events
	}
	event.Lease = c.lease(view)
	return append(events, event)
}

func (c *Controller) appendDeletion(s *Subscription, events []Event, d *deletion) []Event {
	s.position.Revision = d.revision
	if !s.selection.class(d.holder.Key.Class) || !s.mayHave(s.learn(d.slot, lacks)) {
		return events
	}
	lease := Lease{Holder: d.holder, State: session.Gone, Epoch: d.epoch, Shard: int(d.shard)}
	// A shard that is held again has no other leader that could report the session.
	lost := d.shardLost && !c.accepts(int(d.shard))
	return append(events, Event{Type: Deleted, ShardLost: lost, Lease: lease, Version: s.position})
}

func (s *Subscription) selects(view session.Session) bool {
	return s.selection.class(view.Holder.Key.Class) && s.selection.state(view.State)
}

// learn sets what the watcher knows of a slot, and returns what it knew before.
func (s *Subscription) learn(slot uint32, k knowledge) (before knowledge) {
	if missing := int(slot) + 1 - len(s.known); missing > 0 {
		s.known = append(s.known, make([]knowledge, missing)...)
	}
	before, s.known[slot] = s.known[slot], k
	return before
}

// mayHave reports whether the watcher may have a session of which it has the given knowledge.
func (s *Subscription) mayHave(k knowledge) bool { return k == has || k == unsaid && s.resumed() }
