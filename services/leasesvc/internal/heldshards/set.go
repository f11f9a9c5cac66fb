package heldshards

import (
	"maps"
	"slices"
	"sync"
)

// Board is the set of the tenures that are held here, one for each shard at most. It is safe for concurrent use.
type Set struct {
	mu      sync.Mutex // guards what follows
	held    map[int]*Shard
	changed chan struct{} // closed and replaced with every change of held
}

// NewBoard returns an empty Board.
func NewSet() *Set {
	return &Set{held: map[int]*Shard{}, changed: make(chan struct{})}
}

// Add puts a tenure up, in the place of one of the same shard.
func (b *Set) Add(t *Shard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[t.id] = t
	b.notify()
}

// Remove takes a tenure down. It leaves another one of the same shard alone.
func (b *Set) Remove(t *Shard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[t.id] != t {
		return
	}
	delete(b.held, t.id)
	b.notify()
}

func (b *Set) notify() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Held is the tenure of a shard; false while the shard is not held here.
func (b *Set) Get(shard int) (*Shard, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, held := b.held[shard]
	return t, held
}

// Shards are the shards that are held here, in order.
func (b *Set) IDs() []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.held))
}

// Changed returns a channel that is closed with the next change. Who takes it before reading the Board misses none.
func (b *Set) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}
