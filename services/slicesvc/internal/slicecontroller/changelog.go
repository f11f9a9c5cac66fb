package slicecontroller

import (
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
	// ends is before the oldest entry and after the latest: the entries are a ring in
	// order of change. places finds them by Service.
	ends   *entry
	places map[Key]*entry
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
	// before and after are its neighbours in the ring.
	before, after *entry
}

func newFeed() *feed {
	ends := &entry{}
	ends.before, ends.after = ends, ends
	return &feed{
		ends:   ends,
		places: map[Key]*entry{},
		more:   make(chan struct{}),
	}
}

// append puts an entry behind the latest.
func (f *feed) append(e *entry) {
	e.before, e.after = f.ends.before, f.ends
	e.before.after, e.after.before = e, e
}

// unlink takes an entry out of the ring.
func (e *entry) unlink() { e.before.after, e.after.before = e.after, e.before }

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
	last := f.places[changed.Key]
	if last == nil {
		last = &entry{}
		f.places[changed.Key] = last
	} else {
		last.unlink()
	}
	f.append(last)
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
	for oldest := f.ends.after; f.gone > gravestones/2 && oldest != f.ends; oldest = oldest.after {
		if oldest.changed.Gone {
			f.lost = oldest.revision
			f.gone--
			oldest.unlink()
			delete(f.places, oldest.changed.Key)
		}
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
	first := f.ends
	for first.before != f.ends && first.before.revision > revision {
		first = first.before
	}
	for ; first != f.ends; first = first.after {
		changes.Services = append(changes.Services, first.changed)
	}
	return changes
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}
