package allocationcontroller

import (
	"cmp"
	"container/heap"
	"time"
)

const (
	// maxWorkers bounds the findings that are worked on at the same time. maxRetrying bounds those
	// of them whose last attempt failed, so that requests that hang leave workers for others.
	maxWorkers, maxRetrying = 16, 8
	// slowAfter is the time after which a worker counts as slow, because its requests may hang.
	// What is in use and free gets further workers in place of slow ones, up to maxRunning.
	slowAfter  = 500 * time.Millisecond
	maxRunning = 64
	// retryInterval is the shortest time between two attempts after a failure, over all findings:
	// an outage must not cause a request storm, however many findings wait.
	retryInterval = 100 * time.Millisecond
)

// workQueue has the findings that need reads or writes, and decides which one is next. A finding is
// in it once, and never in two workers. It reads no clock, and one goroutine uses it.
type workQueue struct {
	// waiting are the findings before their time. ready and retries are those after it, without and
	// with a failed attempt.
	waiting, ready, retries *workHeap
	items                   map[string]*workItem
	running                 map[string]workItem
	// batched are the running findings that share a worker with another one.
	batched, retrying int
	nextRetry         time.Time
	added             uint64
}

// workItem is a finding in the queue.
type workItem struct {
	finding string
	// priority is that of the finding's next step. The lowest comes first.
	priority  int
	notBefore time.Time
	// retried reports that the last attempt failed.
	retried bool
	// number is the order in which findings were added.
	number uint64
	// started is when a worker took it.
	started time.Time
	in      *workHeap
	at      int
}

func newWorkQueue() *workQueue {
	byTime := func(a, b *workItem) int {
		return cmp.Or(a.notBefore.Compare(b.notBefore), cmp.Compare(a.number, b.number))
	}
	byPriority := func(a, b *workItem) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.number, b.number))
	}
	return &workQueue{
		waiting: &workHeap{compare: byTime}, ready: &workHeap{compare: byPriority}, retries: &workHeap{compare: byPriority},
		items: map[string]*workItem{}, running: map[string]workItem{},
	}
}

// add adds a finding that is worked on at notBefore or later. A finding that is in the queue or
// with a worker stays as it is.
func (q *workQueue) add(finding string, priority int, notBefore time.Time, retried bool) {
	if q.has(finding) {
		return
	}
	q.added++
	item := &workItem{finding: finding, priority: priority, notBefore: notBefore, retried: retried, number: q.added}
	q.items[finding] = item
	q.waiting.push(item)
}

// hurry makes a waiting finding ready now.
func (q *workQueue) hurry(finding string, now time.Time) {
	if item := q.items[finding]; item != nil && item.in == q.waiting && now.Before(item.notBefore) {
		item.notBefore = now
		heap.Fix(q.waiting, item.at)
	}
}

func (q *workQueue) has(finding string) bool {
	_, running := q.running[finding]
	return running || q.items[finding] != nil
}

// pop returns the next finding, false if none is ready or no worker is free. The caller calls done
// for it.
func (q *workQueue) pop(now time.Time) (string, bool) {
	q.advance(now)
	from := q.ready
	if q.mayRetry(now) && (len(q.ready.list) == 0 || q.retries.list[0].priority < q.ready.list[0].priority) {
		from = q.retries
	}
	if len(from.list) == 0 {
		return "", false
	}
	item := from.list[0]
	if at := q.freeAt(item.priority, now); at.IsZero() || now.Before(at) {
		return "", false
	}
	if from == q.retries {
		q.nextRetry = now.Add(retryInterval)
	}
	q.start(item, now)
	return item.finding, true
}

// take makes a ready finding a running one that shares the worker of another. It returns false if
// the finding is not ready.
func (q *workQueue) take(finding string, now time.Time) bool {
	q.advance(now)
	item := q.items[finding]
	if item == nil || item.in == q.waiting {
		return false
	}
	q.batched++
	item.number = 0
	q.start(item, now)
	return true
}

// freeAt returns when a finding of a priority gets a worker without another call of done, zero if
// none will be free.
func (q *workQueue) freeAt(priority int, now time.Time) time.Time {
	switch running := len(q.running) - q.batched; {
	case running < maxWorkers:
		return now
	case priority > 0, running >= maxRunning:
		return time.Time{}
	}
	var firstSlow time.Time
	fast := 0
	for _, item := range q.running {
		slow := item.started.Add(slowAfter)
		if item.number == 0 || !now.Before(slow) {
			continue
		}
		fast++
		if firstSlow.IsZero() || slow.Before(firstSlow) {
			firstSlow = slow
		}
	}
	if fast < maxWorkers {
		return now
	}
	return firstSlow
}

func (q *workQueue) start(item *workItem, now time.Time) {
	item.started = now
	heap.Remove(item.in, item.at)
	delete(q.items, item.finding)
	q.running[item.finding] = *item
	if item.retried && item.number != 0 {
		q.retrying++
	}
}

// done ends the work on a finding. It may then be added again.
func (q *workQueue) done(finding string) {
	item, ok := q.running[finding]
	switch {
	case !ok:
		return
	case item.number == 0:
		q.batched--
	case item.retried:
		q.retrying--
	}
	delete(q.running, finding)
}

// recovered lets the next finding be retried at once, because an attempt has succeeded.
func (q *workQueue) recovered() { q.nextRetry = time.Time{} }

// next returns when pop can next succeed without another call of add or done, zero if it cannot.
func (q *workQueue) next(now time.Time) (next time.Time) {
	consider := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if len(q.waiting.list) > 0 {
		consider(q.waiting.list[0].notBefore)
	}
	if len(q.ready.list) > 0 {
		consider(q.freeAt(q.ready.list[0].priority, now))
	}
	if len(q.retries.list) > 0 && q.retrying < maxRetrying {
		if free := q.freeAt(q.retries.list[0].priority, now); !free.IsZero() {
			consider(maxTime(free, q.nextRetry))
		}
	}
	return next
}

// advance moves the findings whose time has come.
func (q *workQueue) advance(now time.Time) {
	for len(q.waiting.list) > 0 && !now.Before(q.waiting.list[0].notBefore) {
		item, _ := heap.Pop(q.waiting).(*workItem)
		if item.retried {
			q.retries.push(item)
		} else {
			q.ready.push(item)
		}
	}
}

func (q *workQueue) mayRetry(now time.Time) bool {
	return len(q.retries.list) > 0 && q.retrying < maxRetrying && !now.Before(q.nextRetry)
}

// workHeap is a heap of items that know their position.
type workHeap struct {
	list    []*workItem
	compare func(a, b *workItem) int
}

func (h *workHeap) push(item *workItem) {
	item.in = h
	heap.Push(h, item)
}

func (h *workHeap) Len() int           { return len(h.list) }
func (h *workHeap) Less(i, j int) bool { return h.compare(h.list[i], h.list[j]) < 0 }

func (h *workHeap) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].at, h.list[j].at = i, j
}

func (h *workHeap) Push(item any) {
	work, _ := item.(*workItem) // container/heap passes what the caller gave it
	work.at = len(h.list)
	h.list = append(h.list, work)
}

func (h *workHeap) Pop() any {
	last := h.list[len(h.list)-1]
	h.list = h.list[:len(h.list)-1]
	return last
}
