package slicecontroller

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/internal/shard"
)

// serviceQueue holds the Services that wait for a sync, each once.
type serviceQueue = workqueue.TypedDelayingInterface[Key]

// shardTracker knows which shards are held here and which of their Services wait for a sync.
type shardTracker struct {
	mu sync.Mutex // guards all below; never held across I/O
	// queue is nil while Run is not running. order decides which Service is next.
	queue serviceQueue
	order *priorityQueue
	// owned has the shards held here, nil for the others.
	owned []*ownedShard
	// synced has the time of the last successful sync of each Service here, in any term.
	synced map[Key]time.Time
	// syncs counts the syncs since takeSyncCount.
	syncs int
}

func newShardTracker(shards int) *shardTracker {
	return &shardTracker{
		order:  newPriorityQueue(),
		owned:  make([]*ownedShard, shards),
		synced: map[Key]time.Time{},
	}
}

func (t *shardTracker) openQueue() serviceQueue {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[Key]{
		Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[Key]{Queue: t.order}),
	})
	return t.queue
}

func (t *shardTracker) closeQueue() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = nil
}

func (t *shardTracker) queueLength() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue == nil {
		return 0
	}
	return t.queue.Len()
}

// acquire begins a term of a shard. From now on causes of syncs are recorded.
func (t *shardTracker) acquire(owned *ownedShard) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if owned.shard < 0 || owned.shard >= len(t.owned) {
		return fmt.Errorf("shard %d does not exist: there are %d", owned.shard, len(t.owned))
	}
	if t.owned[owned.shard] != nil {
		return fmt.Errorf("shard %d is held already", owned.shard)
	}
	t.owned[owned.shard] = owned
	return nil
}

// release ends a term. It blocks until the syncs of the shard have returned, and returns the slices
// that are still to be read.
func (t *shardTracker) release(owned *ownedShard) (unread []Key) {
	t.mu.Lock()
	t.owned[owned.shard] = nil
	t.mu.Unlock()
	return owned.finish()
}

// startWork returns the owned shard of a Service, and counts a sync in it that must end with
// syncs.Done. It returns nil if the shard is not held or its term has ended.
func (t *shardTracker) startWork(key Key) *ownedShard {
	t.mu.Lock()
	defer t.mu.Unlock()
	owned := t.owner(key)
	if owned == nil || owned.ctx.Err() != nil {
		return nil
	}
	owned.syncs.Add(1)
	return owned
}

// owner needs t.mu. It returns nil if the shard of the Service is not held here.
func (t *shardTracker) owner(key Key) *ownedShard {
	return t.owned[shard.Of(key.Namespace, key.Name, len(t.owned))]
}

func (t *shardTracker) ownerOf(key Key) *ownedShard {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.owner(key)
}

// held returns the shards held here, in order.
func (t *shardTracker) held() []*ownedShard {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(t.owned), func(owned *ownedShard) bool { return owned == nil })
}

// enqueue queues a Service after a delay. It does nothing if the shard is not led here: its leader
// sees the same change, and a new term here begins with a sync of every Service.
func (t *shardTracker) enqueue(key Key, at priority, delay time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue == nil || t.owner(key) == nil {
		return
	}
	t.order.raise(key, at)
	t.queue.AddAfter(key, delay) // at once if the delay is 0
}

// recordSync counts a sync. complete says that it wrote everything that it planned.
func (t *shardTracker) recordSync(key Key, complete bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.syncs++
	if complete {
		t.synced[key] = now
	}
}

// takeSyncCount returns the number of syncs that finished since it was last called.
func (t *shardTracker) takeSyncCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	syncs := t.syncs
	t.syncs = 0
	return syncs
}

// forget drops the record of a Service that is deleted or not managed. Waiters get err.
func (t *shardTracker) forget(key Key, err error) {
	t.mu.Lock()
	delete(t.synced, key)
	owned := t.owner(key)
	t.mu.Unlock()
	if owned != nil {
		owned.forget(key, err)
	}
}

// describe sets the fields of state that do not come from the cache.
func (t *shardTracker) describe(key Key, state *SyncStatus, now time.Time) {
	t.mu.Lock()
	owned := t.owner(key)
	state.History.LastSuccess = t.synced[key]
	t.mu.Unlock()
	if owned != nil {
		owned.describe(key, state, now)
	}
}
