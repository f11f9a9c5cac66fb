package slicecontroller

import (
	"container/list"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// maxTombstones is how many deleted Services the change log keeps. A reader that is further behind
// must list again.
const maxTombstones = 10_000

// Changes are the changes since a revision.
type Changes struct {
	// Services are the Services that changed, each once, in the order of their last change.
	Services []ServiceChange
	// Revision is the argument of the next call.
	Revision uint64
	// Lost says that the revision is too old, or not one of this process: deletions may be missing,
	// and the reader must list again.
	Lost bool
	// More is closed at the next change after Revision.
	More <-chan struct{}
}

// ServiceChange is the last change of a Service.
type ServiceChange struct {
	Key     Key
	UID     types.UID
	Deleted bool
	// Added says that the Service began to exist after the revision of the reader. Revision is that
	// of the change. Only Changes sets both.
	Added    bool
	Revision uint64
}

// changeLog has the last change of every Service, in order. Any number of readers, each at its own
// pace, read what changed since their last revision.
type changeLog struct {
	mu       sync.Mutex // guards all below
	revision uint64
	// changes has a *loggedChange for each Service, oldest first.
	changes  list.List
	elements map[Key]*list.Element
	// tombstones counts the deleted Services in changes. Tombstones up to revision lost were
	// dropped.
	tombstones int
	lost       uint64
	more       chan struct{} // closed and replaced at each change, if since returned it
	moreUsed   bool
}

type loggedChange struct {
	ServiceChange
	// created is the revision at which the Service began to exist.
	created uint64
}

func newChangeLog() *changeLog {
	return &changeLog{
		elements: map[Key]*list.Element{},
		more:     make(chan struct{}),
	}
}

func (l *changeLog) latest() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.revision
}

func (l *changeLog) record(change ServiceChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revision++
	element := l.elements[change.Key]
	if element == nil {
		element = l.changes.PushBack(&loggedChange{})
		l.elements[change.Key] = element
	} else {
		l.changes.MoveToBack(element)
	}
	logged := changeOf(element)
	if logged.Deleted {
		l.tombstones--
	}
	if change.Deleted {
		l.tombstones++
	}
	if logged.created == 0 || logged.Deleted {
		logged.created = l.revision
	}
	change.Revision = l.revision
	logged.ServiceChange = change
	if l.tombstones > maxTombstones {
		l.dropTombstones()
	}
	if l.moreUsed {
		close(l.more)
		l.more, l.moreUsed = make(chan struct{}), false
	}
}

// dropTombstones needs l.mu. It drops the oldest half of the tombstones, so that it runs rarely.
func (l *changeLog) dropTombstones() {
	for element := l.changes.Front(); l.tombstones > maxTombstones/2 && element != nil; {
		next := element.Next()
		if logged := changeOf(element); logged.Deleted {
			l.lost = logged.Revision
			l.tombstones--
			l.changes.Remove(element)
			delete(l.elements, logged.Key)
		}
		element = next
	}
}

// since costs as much as there are changes.
func (l *changeLog) since(revision uint64) Changes {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moreUsed = true
	changes := Changes{
		Revision: l.revision,
		Lost:     revision < l.lost || revision > l.revision,
		More:     l.more,
	}
	var first *list.Element
	for element := l.changes.Back(); element != nil && changeOf(element).Revision > revision; element = element.Prev() {
		first = element
	}
	for ; first != nil; first = first.Next() {
		logged := changeOf(first)
		change := logged.ServiceChange
		change.Added = !change.Deleted && logged.created > revision
		changes.Services = append(changes.Services, change)
	}
	return changes
}

func changeOf(element *list.Element) *loggedChange {
	logged, _ := element.Value.(*loggedChange)
	return logged
}
