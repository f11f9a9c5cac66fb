package engine

import (
	"container/list"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// gravestones is how many deleted Services the feed remembers. A reader that is
// further behind begins anew.
const gravestones = 10_000

// Changes is what changed since a revision.
type Changes struct {
	// Services are those that changed, each once, in order of their last change.
	Services []Changed
	// Revision is what to ask with next.
	Revision uint64
	// Lost says that the revision is too old, or none of this process: some
	// deletions may be missing, and the reader must begin anew.
	Lost bool
	// More is closed at the next change after Revision.
	More <-chan struct{}
}

// Changed is a Service of which something that is shown changed.
type Changed struct {
	Key Key
	UID types.UID
	// Gone says that it does not exist any more.
	Gone bool
}

// Revision is that of the latest change. A reader asks for it before it lists
// Services, and for Changes since it afterwards.
func (e *Engine) Revision() uint64 { return e.feed.now() }

// Changes returns the Services that changed since a revision. It does not block;
// what it costs is what changed. A reader that comes late finds only the last
// state of each Service, which State gives.
func (e *Engine) Changes(since uint64) Changes { return e.feed.since(since) }

// feed has the Services in order of their last change, and by it tells readers,
// as many as there are and as slow as they may be, what is new to them.
type feed struct {
	mu       sync.Mutex // guards all below
	revision uint64
	// order has entries, the latest change last; places finds them by Service.
	order  *list.List
	places map[Key]*list.Element
	// gone counts the deleted among them. Up to the revision lost, some were dropped.
	gone int
	lost uint64
	more chan struct{} // closed and replaced at each change, if anybody was given it
	// awaited says that somebody was.
	awaited bool
}

// entry is the last change of one Service.
type entry struct {
	changed  Changed
	revision uint64
}

func newFeed() *feed {
	return &feed{order: list.New(), places: map[Key]*list.Element{}, more: make(chan struct{})}
}

func (f *feed) now() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.revision
}

// touch takes note of a change of a Service.
func (f *feed) touch(changed Changed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision++
	place := f.places[changed.Key]
	if place == nil {
		place = f.order.PushBack(&entry{})
		f.places[changed.Key] = place
	} else {
		f.order.MoveToBack(place)
	}
	last := place.Value.(*entry)
	f.gone += count(changed.Gone) - count(last.changed.Gone)
	last.changed, last.revision = changed, f.revision
	if f.gone > gravestones {
		f.sweep()
	}
	if f.awaited {
		close(f.more)
		f.more, f.awaited = make(chan struct{}), false
	}
}

// sweep forgets those of the deleted Services that were deleted the longest ago:
// half of them at once, so that it is done seldom.
func (f *feed) sweep() {
	place := f.order.Front()
	for f.gone > gravestones/2 && place != nil {
		next, oldest := place.Next(), place.Value.(*entry)
		if oldest.changed.Gone {
			f.lost = oldest.revision
			f.gone--
			f.order.Remove(place)
			delete(f.places, oldest.changed.Key)
		}
		place = next
	}
}

func (f *feed) since(revision uint64) Changes {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awaited = true
	changes := Changes{
		Revision: f.revision,
		Lost:     revision < f.lost || revision > f.revision,
		More:     f.more,
	}
	first := f.order.Back()
	for first != nil && first.Value.(*entry).revision > revision {
		first = first.Prev()
	}
	if first == nil {
		first = f.order.Front()
	} else {
		first = first.Next()
	}
	for ; first != nil; first = first.Next() {
		if last := first.Value.(*entry); last.revision > revision {
			changes.Services = append(changes.Services, last.changed)
		}
	}
	return changes
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}
