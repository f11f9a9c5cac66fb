package slicecontroller

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// Outcome is what a pass did that somebody asked for.
type Outcome struct {
	// Plan is what was to be written; Applied says that all of it was.
	Plan    pack.Plan
	Applied bool
}

// Reconcile brings the whole of a Service in line before all that waits, also one
// that is being left alone because somebody else keeps undoing what is written.
// It blocks until that is done, until ctx ends, or until the Service's shard is
// not held any more. It fails with ErrNoService, ErrUnmanaged, ErrNotHeld, or with
// what a write failed with, which is tried again whether anybody waits or not.
func (e *Engine) Reconcile(ctx context.Context, key Key) (Outcome, error) {
	service, ok := e.cache.service(key)
	switch {
	case !ok:
		return Outcome{}, ErrNoService
	case !e.serves(service):
		return Outcome{}, ErrUnmanaged
	}
	h := e.ledger.holderOf(key)
	if h == nil {
		return Outcome{}, ErrNotHeld
	}
	answer := make(chan outcome, 1) // whoever answers never waits
	h.ask(key, answer, time.Now())
	e.ledger.enqueue(key, asked, 0)
	select {
	case <-ctx.Done():
		return Outcome{}, ctx.Err()
	case <-h.ctx.Done():
		return Outcome{}, ErrNotHeld
	case how := <-answer:
		return Outcome{Plan: how.plan, Applied: how.err == nil}, how.err
	}
}
