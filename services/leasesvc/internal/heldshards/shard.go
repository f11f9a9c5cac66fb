// Package heldshards tracks the shards that this replica holds, and the writes that it makes under
// their terms.
//
// Promise: a caller asks Shard.BeginWrite before each write and writes with the context that it
// returns. Drain returns after all such writes have returned, and none begins after it. So no write
// outlives the term.
//
// The package writes nothing. It knows neither sessions nor Nodes: the session controller, the
// lease writer and the node health controller all write under a held shard.
package heldshards

import (
	"context"
	"sync"
)

// Shard is one shard during one term. It is safe for concurrent use.
type Shard struct {
	id     int
	epoch  int64
	ctx    context.Context
	writes sync.WaitGroup // in flight; none is added once closed is set

	mu     sync.Mutex // guards closed
	closed bool
}

// New returns a shard that is held until ctx ends. ctx must carry the term.
func New(ctx context.Context, id int, epoch int64) *Shard {
	return &Shard{ctx: ctx, id: id, epoch: epoch}
}

// ID returns the number of the shard.
func (s *Shard) ID() int { return s.id }

// Epoch returns the epoch of the term.
func (s *Shard) Epoch() int64 { return s.epoch }

// Context carries the term and ends with it. Writes use the context of BeginWrite instead.
func (s *Shard) Context() context.Context { return s.ctx }

// BeginWrite returns the context of one write; the caller calls end once after the write. It is
// false if the term has ended; then nothing may be written.
func (s *Shard) BeginWrite() (ctx context.Context, end func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ctx.Err() != nil {
		return nil, nil, false
	}
	s.writes.Add(1)
	return s.ctx, s.writes.Done, true
}

// Drain prevents new writes and waits for those in flight. It may be repeated.
func (s *Shard) Drain() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.writes.Wait()
}
