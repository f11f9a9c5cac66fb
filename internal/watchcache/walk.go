package watchcache

import (
	"cmp"
	"slices"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// walk is a reader's way through the log: the records in (from, to], of which those up to at are
// done.
type walk struct{ from, to, at uint64 }

func (w walk) done() bool { return w.at == w.to }

// eventOf returns the event that a record in (from, to] is for the reader, or UNSPECIFIED for none.
// Each creation shows the newest state, which is that at to or a later one. So a modification or
// deletion of an object that was created within the walk is no event.
func eventOf[T any](w walk, r record[T]) metav1.EventType {
	o := r.object
	switch {
	case r.stale():
		return metav1.EventType_EVENT_TYPE_UNSPECIFIED
	case r.revision == o.created:
		if o.created > w.from && o.deleted != 0 && o.deleted <= w.to {
			return metav1.EventType_EVENT_TYPE_UNSPECIFIED
		}
		return metav1.EventType_EVENT_TYPE_ADDED
	case o.created > w.from:
		return metav1.EventType_EVENT_TYPE_UNSPECIFIED
	case r.revision == o.deleted:
		return metav1.EventType_EVENT_TYPE_DELETED
	default:
		return metav1.EventType_EVENT_TYPE_MODIFIED
	}
}

// complete says whether all deletions that the reader has to see are remembered, if those up to
// forgotten are not. A reader in its initial walk does not have the objects that were deleted
// before the end of the walk.
func (w walk) complete(forgotten uint64) bool {
	if w.from == 0 {
		return forgotten <= w.to
	}
	return forgotten <= w.at
}

// change is a record as a reader sees it.
type change[T any] struct {
	event   metav1.EventType
	state   T
	created uint64
	at      uint64
}

const (
	// maxChanges is how many changes a reader takes in one step, and maxRecords how many records it
	// looks at. Both bound how long it holds the lock.
	maxChanges = 256
	maxRecords = 4096
)

// read appends the next changes of a walk to buffer and returns the walk after them. It returns
// false if the cache has forgotten a deletion that belongs to them.
func (c *Cache[T]) read(w walk, buffer []change[T]) ([]change[T], walk, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !w.complete(c.forgotten) {
		return buffer, w, false
	}
	first, found := slices.BinarySearchFunc(c.log, w.at, func(r record[T], at uint64) int { return cmp.Compare(r.revision, at) })
	if found {
		first++
	}
	next := c.log[first:]
	for i, r := range next {
		if r.revision > w.to {
			break
		}
		if i == maxRecords || len(buffer) == maxChanges {
			return buffer, w, true
		}
		w.at = r.revision
		if event := eventOf(w, r); event != metav1.EventType_EVENT_TYPE_UNSPECIFIED {
			buffer = append(buffer, change[T]{event: event, state: r.object.state, created: r.object.created, at: w.at})
		}
	}
	w.at = w.to
	return buffer, w, true
}
