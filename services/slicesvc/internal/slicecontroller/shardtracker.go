package slicecontroller

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/internal/shard"
)

// queue holds the Services to be worked on, each once.
type queue = workqueue.TypedDelayingInterface[Key]

// History is how passes over a Service went on this replica.
type History struct {
	// LastSync is when one last succeeded; zero if none did.
	LastSync time.Time
	// LastError is what the last one failed with; empty when it succeeded, and
	// when the Service's shard is not held here.
	LastError string
	// Failures counts those that failed since the last success.
	Failures int
}

// ledger knows which shards are held here and what is to be done for them.
type ledger struct {
	mu sync.Mutex // guards all below; never held across I/O
	// queue takes work; nil while Run is not running. line is its order.
	queue queue
	line  *line
	// held has a holding for each shard that is held here, nil for the others.
	held []*holding
	// synced is when a pass over a Service last succeeded here, in whatever term.
	synced map[Key]time.Time
	// passes counts passes finished since health was last asked.
	passes int
}

func newLedger(shards int) *ledger {
	return &ledger{
		line:   newLine(),
		held:   make([]*holding, shards),
		synced: map[Key]time.Time{},
	}
}

// open makes the queue and returns it.
func (l *ledger) open() queue {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[Key]{
		Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[Key]{Queue: l.line}),
	})
	return l.queue
}

func (l *ledger) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = nil
}

func (l *ledger) queueLength() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		return 0
	}
	return l.queue.Len()
}

// hold begins a term of a shard. From now on changes are noted.
func (l *ledger) hold(h *holding) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.shard < 0 || h.shard >= len(l.held) {
		return fmt.Errorf("shard %d is none of the %d into which Services are divided", h.shard, len(l.held))
	}
	if l.held[h.shard] != nil {
		return fmt.Errorf("shard %d is held already", h.shard)
	}
	l.held[h.shard] = h
	return nil
}

// release ends a term: no pass begins any more. It returns when those under way
// have returned, and gives the slices they left to be read.
func (l *ledger) release(h *holding) (unread []Key) {
	l.mu.Lock()
	l.held[h.shard] = nil
	l.mu.Unlock()
	return h.finish()
}

// enter begins a pass over a Service, which must end with underway.Done; nil
// when the Service's shard is not held, or not any more.
func (l *ledger) enter(key Key) *holding {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.holder(key)
	if h == nil || h.ctx.Err() != nil {
		return nil
	}
	h.underway.Add(1)
	return h
}

// holder returns the holding that a Service belongs to, nil when its shard is
// not held here. It needs l.mu.
func (l *ledger) holder(key Key) *holding {
	return l.held[shard.Of(key.Namespace, key.Name, len(l.held))]
}

func (l *ledger) holderOf(key Key) *holding {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder(key)
}

// holdings returns what is held, ordered by shard.
func (l *ledger) holdings() []*holding {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.held), func(h *holding) bool { return h == nil })
}

// enqueue asks for a pass over a Service, at once or after a while. If its shard is
// not held here nothing is asked: whoever holds it sees the same, and its next
// term here begins with a pass over all of them.
func (l *ledger) enqueue(key Key, rank int, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil || l.holder(key) == nil {
		return
	}
	l.line.raise(key, rank)
	l.queue.AddAfter(key, wait) // at once if there is nothing to wait for
}

// ended takes down that a pass over a Service has ended.
func (l *ledger) ended(key Key, err error, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passes++
	if err == nil {
		l.synced[key] = now
	}
}

// takePasses returns how many passes have ended since it was last asked.
func (l *ledger) takePasses() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	passes := l.passes
	l.passes = 0
	return passes
}

// forget drops what is known of a Service that is gone or not managed; whoever
// waits for a pass over it is told why there is none.
func (l *ledger) forget(key Key, err error) {
	l.mu.Lock()
	delete(l.synced, key)
	h := l.holder(key)
	l.mu.Unlock()
	if h != nil {
		h.forget(key, err)
	}
}

// describe fills in what is known of a Service beside the cache.
func (l *ledger) describe(key Key, state *State, now time.Time) {
	l.mu.Lock()
	h := l.holder(key)
	state.History.LastSync = l.synced[key]
	l.mu.Unlock()
	if h != nil {
		h.describe(key, state, now)
	}
}

// pending reports whether something is left to do here for the Service.
func (l *ledger) pending(key Key) bool {
	h := l.holderOf(key)
	return h != nil && h.pending(key)
}

// behind reports whether it is still to be found out what the last holder left.
func (l *ledger) behind(key Key) bool {
	h := l.holderOf(key)
	return h != nil && h.behind()
}
