package tenure

import (
	"maps"
	"slices"
	"sync"
)

// Board is the set of the tenures that are held here, one for each shard at most. It is safe for concurrent use.
type Board struct {
	mu      sync.Mutex // guards what follows
	held    map[int]*Tenure
	changed chan struct{} // closed and replaced with every change of held
}

// NewBoard returns an empty Board.
func NewBoard() *Board {
	return &Board{held: map[int]*Tenure{}, changed: make(chan struct{})}
}

// Add puts a tenure up, in the place of one of the same shard.
func (b *Board) Add(t *Tenure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[t.shard] = t
	b.tell()
}

// Remove takes a tenure down. It leaves another one of the same shard alone.
func (b *Board) Remove(t *Tenure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[t.shard] != t {
		return
	}
	delete(b.held, t.shard)
	b.tell()
}

func (b *Board) tell() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Held is the tenure of a shard; false while the shard is not held here.
func (b *Board) Held(shard int) (*Tenure, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, held := b.held[shard]
	return t, held
}

// Shards are the shards that are held here, in order.
func (b *Board) Shards() []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.held))
}

// Changed returns a channel that is closed with the next change. Who takes it before reading the Board misses none.
func (b *Board) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}
