package tenure

import (
	"context"
	"sync"
)

// Tenure is one shard for one term, and the writes that are made under it. It is safe for concurrent use.
type Tenure struct {
	shard    int
	epoch    int64
	ctx      context.Context
	underway sync.WaitGroup // of writes; none is added once over is set

	mu   sync.Mutex // guards over
	over bool
}

// New returns the tenure of a shard under the term that ctx carries and ends with.
func New(ctx context.Context, shard int, epoch int64) *Tenure {
	return &Tenure{ctx: ctx, shard: shard, epoch: epoch}
}

// Shard is the shard that is held.
func (t *Tenure) Shard() int { return t.shard }

// Epoch is that of the term.
func (t *Tenure) Epoch() int64 { return t.epoch }

// Context carries the term and ends with it. Writes are made under that of Begin.
func (t *Tenure) Context() context.Context { return t.ctx }

// Begin is asked before each write. With ok, the write is made with ctx, and end called once when it has returned. Without,
// the term is over and nothing may be written.
func (t *Tenure) Begin() (ctx context.Context, end func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.ctx.Err() != nil {
		return nil, nil, false
	}
	t.underway.Add(1)
	return t.ctx, t.underway.Done, true
}

// Finish lets no write begin any more and waits for those under way. It may be repeated.
func (t *Tenure) Finish() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.underway.Wait()
}
