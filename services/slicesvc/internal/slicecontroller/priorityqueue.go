package slicecontroller

import (
	"slices"
	"sync"

	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// priority orders the Services that wait for a sync.
type priority uint8

const (
	// background comes after any change: compaction.
	background priority = 0
	// requested comes before any change: a client waits for the sync.
	requested = priority(index.Urgent) + 2
)

// priorityOf returns the priority of changes.
func priorityOf(urgency index.Urgency) priority { return priority(urgency) + 1 }

const (
	// maxStaleEntries bounds the stale entries of a priority, beyond twice the number of waiting
	// Services.
	maxStaleEntries = 128
)

// priorityQueue orders Services by priority. Within a priority namespaces take turns, each first
// in, first out: a tenant whose thousand Services change at once delays one Service of another
// tenant by one of its own. It orders a workqueue, which keeps each Service in it once and calls it
// under its own lock.
type priorityQueue struct {
	mu sync.Mutex // guards all below
	// wanted has the priority of Services that wait or soon will.
	wanted map[Key]priority
	// queued has the priority with which a Service waits. Entries of keys under another priority
	// are stale and skipped.
	queued map[Key]priority
	keys   [requested + 1]turns
}

var _ workqueue.Queue[Key] = &priorityQueue{}

func newPriorityQueue() *priorityQueue {
	return &priorityQueue{wanted: map[Key]priority{}, queued: map[Key]priority{}}
}

// raise gives a Service at least that priority, now or as soon as it is added.
func (q *priorityQueue) raise(key Key, at priority) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wanted[key] = max(q.wanted[key], at)
}

// Touch moves a Service that is added again, if its priority was raised.
func (q *priorityQueue) Touch(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if at := q.wanted[key]; at > q.queued[key] {
		q.push(key, at)
	}
}

func (q *priorityQueue) Push(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.push(key, q.wanted[key])
}

// push needs q.mu.
func (q *priorityQueue) push(key Key, at priority) {
	q.queued[key] = at
	q.keys[at].push(key)
	if q.keys[at].size > 2*len(q.queued)+maxStaleEntries {
		q.removeStale(at)
	}
}

// removeStale needs q.mu. Pop removes stale entries only when it reaches them, which may never
// happen while more urgent Services come.
func (q *priorityQueue) removeStale(from priority) {
	seen := map[Key]struct{}{}
	q.keys[from].deleteFunc(func(key Key) bool {
		at, queued := q.queued[key]
		_, duplicate := seen[key]
		seen[key] = struct{}{}
		return !queued || at != from || duplicate
	})
}

func (q *priorityQueue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queued)
}

// Pop is called only if Len is not 0.
func (q *priorityQueue) Pop() Key {
	q.mu.Lock()
	defer q.mu.Unlock()
	for next := len(q.keys) - 1; next >= 0; next-- {
		key, found := q.keys[next].pop(func(key Key) bool {
			at, queued := q.queued[key]
			return !queued || int(at) != next
		})
		if found {
			delete(q.queued, key)
			delete(q.wanted, key)
			return key
		}
	}
	return Key{}
}

// turns are the entries of one priority. The zero value is empty.
type turns struct {
	size int
	// namespaces have entries, in the order of their turns.
	namespaces []string
	entries    map[string][]Key
}

func (t *turns) push(key Key) {
	if t.entries == nil {
		t.entries = map[string][]Key{}
	}
	if len(t.entries[key.Namespace]) == 0 {
		t.namespaces = append(t.namespaces, key.Namespace)
	}
	t.entries[key.Namespace] = append(t.entries[key.Namespace], key)
	t.size++
}

// pop returns the first entry that is not stale of the first namespace that has one. A stale entry
// takes no turn.
func (t *turns) pop(isStale func(Key) bool) (key Key, found bool) {
	for len(t.namespaces) > 0 && !found {
		namespace := t.namespaces[0]
		t.namespaces = t.namespaces[1:]
		entries := t.entries[namespace]
		for len(entries) > 0 && !found {
			key, entries, found = entries[0], entries[1:], !isStale(entries[0])
			t.size--
		}
		if len(entries) == 0 {
			delete(t.entries, namespace)
			continue
		}
		t.entries[namespace] = entries
		t.namespaces = append(t.namespaces, namespace)
	}
	if !found {
		return Key{}, false
	}
	return key, true
}

func (t *turns) deleteFunc(isStale func(Key) bool) {
	t.size = 0
	t.namespaces = slices.DeleteFunc(t.namespaces, func(namespace string) bool {
		kept := slices.DeleteFunc(t.entries[namespace], isStale)
		t.size += len(kept)
		if len(kept) == 0 {
			delete(t.entries, namespace)
			return true
		}
		t.entries[namespace] = kept
		return false
	})
}
