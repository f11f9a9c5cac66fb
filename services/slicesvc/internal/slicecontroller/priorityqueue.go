package slicecontroller

import (
	"slices"
	"sync"

	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

const (
	// requested is more urgent than any change: a client waits for the sync.
	requested = index.Urgent + 1
	// maxStaleEntries bounds the stale entries of an urgency, beyond twice the number of waiting
	// Services.
	maxStaleEntries = 128
)

// priorityQueue orders Services by urgency, then first in, first out. It orders a workqueue, which
// keeps each Service in it once and calls it under its own lock.
type priorityQueue struct {
	mu sync.Mutex // guards all below
	// wanted has the urgency of Services that wait or soon will.
	wanted map[Key]index.Urgency
	// queued has the urgency with which a Service waits. Entries of keys under another urgency are
	// stale and skipped.
	queued map[Key]index.Urgency
	keys   [requested + 1][]Key
}

var _ workqueue.Queue[Key] = &priorityQueue{}

func newPriorityQueue() *priorityQueue {
	return &priorityQueue{wanted: map[Key]index.Urgency{}, queued: map[Key]index.Urgency{}}
}

// raise gives a Service at least that urgency, now or as soon as it is added.
func (q *priorityQueue) raise(key Key, urgency index.Urgency) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wanted[key] = max(q.wanted[key], urgency)
}

// Touch moves a Service that is added again, if its urgency was raised.
func (q *priorityQueue) Touch(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if urgency := q.wanted[key]; urgency > q.queued[key] {
		q.push(key, urgency)
	}
}

func (q *priorityQueue) Push(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.push(key, q.wanted[key])
}

// push needs q.mu.
func (q *priorityQueue) push(key Key, urgency index.Urgency) {
	q.queued[key] = urgency
	q.keys[urgency] = append(q.keys[urgency], key)
	if len(q.keys[urgency]) > 2*len(q.queued)+maxStaleEntries {
		q.removeStale(urgency)
	}
}

// removeStale needs q.mu. Pop removes stale entries only when it reaches them, which may never
// happen while more urgent Services come.
func (q *priorityQueue) removeStale(urgency index.Urgency) {
	seen := map[Key]struct{}{}
	q.keys[urgency] = slices.DeleteFunc(q.keys[urgency], func(key Key) bool {
		at, queued := q.queued[key]
		_, duplicate := seen[key]
		seen[key] = struct{}{}
		return !queued || at != urgency || duplicate
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
	for urgency := len(q.keys) - 1; urgency >= 0; urgency-- {
		for len(q.keys[urgency]) > 0 {
			key := q.keys[urgency][0]
			q.keys[urgency] = q.keys[urgency][1:]
			if at, ok := q.queued[key]; ok && int(at) == urgency {
				delete(q.queued, key)
				delete(q.wanted, key)
				return key
			}
		}
	}
	return Key{}
}
