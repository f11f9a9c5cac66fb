package sessioncontroller

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

const (
	// maxDeletions is the number of deletions that are kept for watchers.
	maxDeletions = 1 << 17
	// noSlot ends the list of changes.
	noSlot = ^uint32(0)
)

// changeList is the list of sessions in the order of their last change, and the list of deletions.
// A session that changes again moves to the end. So the list is never longer than the table,
// however slow a watcher is.
type changeList struct {
	// revision counts changes.
	revision   uint64
	links      session.Slab[changeLink] // by slot
	head, tail uint32
	// deletions are ordered by revision. compacted is the revision of the newest one that was
	// dropped.
	deletions []deletion
	compacted uint64
	watchers  map[*Subscription]struct{}
	// shardChanges counts the shards that were gained or lost.
	shardChanges uint64
}

// changeLink is the place of a slot in the list. A slot with revision 0 is not in the list.
type changeLink struct {
	revision       uint64 // of the last change
	next, previous uint32
}

// deletion is a session that is gone.
type deletion struct {
	revision uint64
	holder   session.Holder
	epoch    int64
	slot     uint32
	shard    uint16
	// shardLost says that the shard of the session was lost. The session may continue elsewhere.
	shardLost bool
}

func newChangeList() changeList {
	return changeList{head: noSlot, tail: noSlot, watchers: map[*Subscription]struct{}{}}
}

// touch moves a changed slot to the end.
func (l *changeList) touch(slot uint32) {
	l.links.Extend(int(slot) + 1)
	l.unlink(slot)
	l.revision++
	*l.links.At(slot) = changeLink{revision: l.revision, next: noSlot, previous: l.tail}
	if l.tail == noSlot {
		l.head = slot
	} else {
		l.links.At(l.tail).next = slot
	}
	l.tail = slot
	l.wakeWatchers()
}

// delete removes the slot of a session that is gone.
func (l *changeList) delete(d deletion) {
	l.unlink(d.slot)
	l.revision++
	d.revision = l.revision
	if len(l.deletions) == maxDeletions {
		// Half of them are dropped at once, so that a deletion takes constant time on average.
		l.compacted = l.deletions[maxDeletions/2-1].revision
		l.deletions = append(make([]deletion, 0, maxDeletions), l.deletions[maxDeletions/2:]...)
	}
	l.deletions = append(l.deletions, d)
	l.wakeWatchers()
}

// unlink removes a slot from the list. The cursor of a watcher on it moves to the slot before,
// which the watcher has seen.
func (l *changeList) unlink(slot uint32) {
	link := l.links.At(slot)
	if link.revision == 0 {
		return
	}
	for watcher := range l.watchers {
		if watcher.cursor == slot {
			watcher.cursor = link.previous
		}
	}
	if link.previous == noSlot {
		l.head = link.next
	} else {
		l.links.At(link.previous).next = link.next
	}
	if link.next == noSlot {
		l.tail = link.previous
	} else {
		l.links.At(link.next).previous = link.previous
	}
	*link = changeLink{}
}

// changeShards notes that a shard was gained or lost.
func (l *changeList) changeShards() {
	l.shardChanges++
	l.wakeWatchers()
}

func (l *changeList) wakeWatchers() {
	for watcher := range l.watchers {
		select {
		case watcher.wake <- struct{}{}:
		default:
		}
	}
}

// next returns the slot after the cursor. It is false at the end.
func (l *changeList) next(cursor uint32) (uint32, bool) {
	next := l.head
	if cursor != noSlot {
		next = l.links.At(cursor).next
	}
	return next, next != noSlot
}
