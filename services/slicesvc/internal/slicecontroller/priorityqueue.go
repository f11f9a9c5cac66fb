package slicecontroller

import (
	"slices"
	"sync"

	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

const (
	// priorities is the number of priorities: one for each urgency, and requestedPriority.
	priorities = 4
	// requestedPriority is the priority of a Service for which a client waits.
	requestedPriority = priorities - 1
	// maxStaleEntries bounds the stale entries of a priority, beyond twice the number of waiting
	// Services.
	maxStaleEntries = 128
)

func priorityOf(urgency index.Urgency) int { return int(min(urgency, index.Urgent)) }

// priorityQueue orders Services by priority, then first in, first out. It orders a workqueue, which
// keeps each Service in it once and calls it under its own lock.
type priorityQueue struct {
	mu sync.Mutex // guards all below
	// wanted has the priority of Services that wait or soon will.
	wanted map[Key]int
	// queued has the priority under which a Service waits. Entries of keys under another priority
	// are stale and skipped.
	queued map[Key]int
	keys   [priorities][]Key
}

var _ workqueue.Queue[Key] = &priorityQueue{}

func newPriorityQueue() *priorityQueue {
	return &priorityQueue{wanted: map[Key]int{}, queued: map[Key]int{}}
}

// raise gives a Service at least that priority, now or as soon as it is added.
func (q *priorityQueue) raise(key Key, priority int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if has, ok := q.wanted[key]; !ok || has < priority {
		q.wanted[key] = priority
	}
}

// Touch moves a Service that is added again, if its priority was raised.
func (q *priorityQueue) Touch(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if priority := q.wanted[key]; priority > q.queued[key] {
		q.push(key, priority)
	}
}

func (q *priorityQueue) Push(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.push(key, q.wanted[key])
}

// push needs q.mu.
func (q *priorityQueue) push(key Key, priority int) {
	q.queued[key] = priority
	q.keys[priority] = append(q.keys[priority], key)
	if len(q.keys[priority]) > 2*len(q.queued)+maxStaleEntries {
		q.removeStale(priority)
	}
}

// removeStale needs q.mu. Pop removes stale entries only when it reaches them, which may never
// happen while higher priorities have Services.
func (q *priorityQueue) removeStale(priority int) {
	seen := map[Key]struct{}{}
	q.keys[priority] = slices.DeleteFunc(q.keys[priority], func(key Key) bool {
		at, queued := q.queued[key]
		_, duplicate := seen[key]
		seen[key] = struct{}{}
		return !queued || at != priority || duplicate
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
	for priority := priorities - 1; priority >= 0; priority-- {
		for len(q.keys[priority]) > 0 {
			key := q.keys[priority][0]
			q.keys[priority] = q.keys[priority][1:]
			if at, ok := q.queued[key]; ok && at == priority {
				delete(q.queued, key)
				delete(q.wanted, key)
				return key
			}
		}
	}
	return Key{}
}
