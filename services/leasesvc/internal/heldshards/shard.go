package heldshards

import (
	"context"
	"sync"
)

// Tenure is one shard for one term, and the writes that are made under it. It is safe for concurrent use.
type Shard struct {
	id     int
	epoch  int64
	ctx    context.Context
	writes sync.WaitGroup // of writes; none is added once over is set

	mu     sync.Mutex // guards over
	closed bool
}

// New returns the tenure of a shard under the term that ctx carries and ends with.
func New(ctx context.Context, shard int, epoch int64) *Shard {
	return &Shard{ctx: ctx, id: shard, epoch: epoch}
}

// Shard is the shard that is held.
func (t *Shard) ID() int { return t.id }

// Epoch is that of the term.
func (t *Shard) Epoch() int64 { return t.epoch }

// Context carries the term and ends with it. Writes are made under that of Begin.
func (t *Shard) Context() context.Context { return t.ctx }

// Begin is asked before each write. With ok, the write is made with ctx, and end called once when it has returned. Without,
// the term is over and nothing may be written.
func (t *Shard) BeginWrite() (ctx context.Context, end func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.ctx.Err() != nil {
		return nil, nil, false
	}
	t.writes.Add(1)
	return t.ctx, t.writes.Done, true
}

// Finish lets no write begin any more and waits for those under way. It may be repeated.
func (t *Shard) Drain() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.writes.Wait()
}
