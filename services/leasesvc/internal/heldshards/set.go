package heldshards

import (
	"maps"
	"slices"
	"sync"
)

// Set is the set of the held shards, at most one term for each shard. It is safe for concurrent
// use.
type Set struct {
	mu      sync.Mutex // guards held and changed
	held    map[int]*Shard
	changed chan struct{} // closed and replaced with each change of held
}

// NewSet returns an empty Set.
func NewSet() *Set {
	return &Set{held: map[int]*Shard{}, changed: make(chan struct{})}
}

// Add adds a shard. It replaces an earlier term of the shard.
func (s *Set) Add(shard *Shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[shard.id] = shard
	s.notify()
}

// Remove removes a shard. It does nothing if the Set has another term of the shard.
func (s *Set) Remove(shard *Shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[shard.id] != shard {
		return
	}
	delete(s.held, shard.id)
	s.notify()
}

func (s *Set) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Get returns a held shard.
func (s *Set) Get(id int) (*Shard, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shard, held := s.held[id]
	return shard, held
}

// IDs returns the numbers of the held shards in order.
func (s *Set) IDs() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.held))
}

// Changed returns a channel that is closed with the next change. A caller that takes the channel
// before it reads the Set misses no change.
func (s *Set) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}
