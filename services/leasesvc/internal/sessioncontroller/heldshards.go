package sessioncontroller

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// HeldShard is one shard during one term. All writers of Leases and Nodes write under it: a writer
// calls BeginWrite before each write and uses the context that it returns. So no write outlives the
// term. A HeldShard is safe for concurrent use.
type HeldShard struct {
	id     int
	epoch  int64
	ctx    context.Context
	writes sync.WaitGroup // in flight; none is added once closed is set

	mu     sync.Mutex // guards closed
	closed bool
}

// NewHeldShard returns a shard that is held until ctx ends. ctx must carry the term.
func NewHeldShard(ctx context.Context, id int, epoch int64) *HeldShard {
	return &HeldShard{ctx: ctx, id: id, epoch: epoch}
}

// ID returns the number of the shard.
func (s *HeldShard) ID() int { return s.id }

// Epoch returns the epoch of the term.
func (s *HeldShard) Epoch() int64 { return s.epoch }

// Context carries the term and ends with it. Writes use the context of BeginWrite instead.
func (s *HeldShard) Context() context.Context { return s.ctx }

// BeginWrite returns the context of one write; the caller calls end once after the write. It is
// false if the term has ended; then nothing may be written.
func (s *HeldShard) BeginWrite() (ctx context.Context, end func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ctx.Err() != nil {
		return nil, nil, false
	}
	s.writes.Add(1)
	return s.ctx, s.writes.Done, true
}

// Drain prevents new writes and waits for those in flight. It may be repeated.
func (s *HeldShard) Drain() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.writes.Wait()
}

// HeldShards is the set of the held shards, at most one term for each shard. It is safe for
// concurrent use.
type HeldShards struct {
	mu      sync.Mutex // guards held and changed
	held    map[int]*HeldShard
	changed chan struct{} // closed and replaced with each change of held
}

// NewHeldShards returns an empty HeldShards.
func NewHeldShards() *HeldShards {
	return &HeldShards{held: map[int]*HeldShard{}, changed: make(chan struct{})}
}

// Add adds a shard. It replaces an earlier term of the shard.
func (s *HeldShards) Add(shard *HeldShard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[shard.id] = shard
	s.notify()
}

// Remove removes a shard. It does nothing if the HeldShards has another term of the shard.
func (s *HeldShards) Remove(shard *HeldShard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[shard.id] != shard {
		return
	}
	delete(s.held, shard.id)
	s.notify()
}

func (s *HeldShards) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Get returns a held shard.
func (s *HeldShards) Get(id int) (*HeldShard, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shard, held := s.held[id]
	return shard, held
}

// IDs returns the numbers of the held shards in order.
func (s *HeldShards) IDs() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.held))
}

// Changed returns a channel that is closed with the next change. A caller that takes the channel
// before it reads the HeldShards misses no change.
func (s *HeldShards) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}
