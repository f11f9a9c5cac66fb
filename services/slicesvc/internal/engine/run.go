package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/apply"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

const (
	// A failed pass is repeated after firstRetry, then after twice as long, up
	// to lastRetry, for ever: a Service is never dropped.
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
	// healthPeriod is how often Run reports.
	healthPeriod = time.Second
)

// Run makes the passes over the Services of the shards that are held, until ctx
// ends and its workers have returned. Without a shard it does nothing. It runs
// once, beside whatever calls Hold.
func (e *Engine) Run(ctx context.Context) error {
	work := workqueue.NewTypedDelayingQueue[Key]()
	e.ledger.open(work)
	close(e.running)

	var busy atomic.Int32
	var workers sync.WaitGroup
	for range e.cfg.Workers {
		workers.Go(func() { e.work(work, &busy) })
	}
	e.reportHealth(ctx, &busy)

	e.ledger.close()
	work.ShutDown()
	workers.Wait()
	return nil
}

// Hold brings the slices of a shard's Services in line and keeps them so for one
// term: until ctx, which every write is made with, ends and all passes under way
// have returned. The cache must be filled before. It reports about once a second
// how the work of all shards held goes as a whole; one Service that fails is not
// a failure of the work. Different shards may be held at the same time.
func (e *Engine) Hold(ctx context.Context, shard int, report func(error)) error {
	select {
	case <-ctx.Done():
		return nil
	case <-e.running:
	}
	h := newHolding(ctx, shard, report)
	if err := e.ledger.hold(h); err != nil {
		return err
	}
	e.ledger.enqueue(e.cache.shardKeys(shard)...)
	<-ctx.Done()
	e.ledger.release(h)
	return nil
}

// work takes Services from the queue until it is shut down and empty. A Service
// whose shard was lost while it waited is dropped.
func (e *Engine) work(work queue, busy *atomic.Int32) {
	for {
		key, shutDown := work.Get()
		if shutDown {
			return
		}
		if h := e.ledger.enter(key); h != nil {
			busy.Add(1)
			e.process(h, key)
			busy.Add(-1)
			h.underway.Done()
		}
		work.Done(key)
	}
}

// process makes one pass over a Service and sees to it that another follows
// where one is needed.
func (e *Engine) process(h *holding, key Key) {
	start := time.Now()
	wait, err := e.pass(h, key)
	if h.ctx.Err() != nil {
		return // cut short by the end of the term, which says nothing about the Service
	}
	switch {
	case wait > 0:
		e.metrics.pass(resultStale, time.Since(start))
		e.ledger.enqueueAfter(key, wait)
	case errors.Is(err, apply.ErrConflict):
		e.metrics.pass(resultConflict, time.Since(start))
		e.ledger.enqueueAfter(key, retryPause(h.failureOf(key).count))
		e.logger.Debug("slices changed under a plan", "service", key.String(), "error", err)
	case err != nil:
		e.metrics.pass(resultError, time.Since(start))
		e.ledger.enqueueAfter(key, retryPause(h.failureOf(key).count))
		e.logger.Warn("service failed, will be tried again", "service", key.String(), "error", err)
	default:
		e.metrics.pass(resultSuccess, time.Since(start))
	}
}

// retryPause is how long a Service rests that failed so often in a row.
func retryPause(failures int) time.Duration {
	doublings := min(max(failures-1, 0), 20) // far beyond lastRetry, far below an overflow
	return min(firstRetry<<doublings, lastRetry)
}

// pass looks at a Service, plans and writes. If wait is positive, the cache is
// behind our own writes and nothing was done.
func (e *Engine) pass(h *holding, key Key) (wait time.Duration, err error) {
	service, ok := e.cache.service(key)
	if !ok || index.Management(service) != index.Managed {
		e.ledger.forget(key)
		return 0, nil
	}
	if wait := h.begin(key, service.UID, time.Now()); wait > 0 {
		return wait, nil
	}
	// The cache is looked at after begin found it fresh, never before: what
	// arrives in between can only make it fresher.
	changeTime, err := e.reconcile(h, key)
	if h.ctx.Err() != nil {
		return 0, err
	}
	now := time.Now()
	if again := h.end(key, changeTime, err, now); again {
		e.ledger.enqueue(key)
	}
	e.ledger.ended(key, err, now)
	return 0, err
}

// reconcile plans a Service and carries the plan out. Whatever breaks, breaks
// for this Service alone.
func (e *Engine) reconcile(h *holding, key Key) (changeTime time.Time, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
			e.logger.Error("panic while working on a service", "service", key.String(), "cause", cause, "stack", string(debug.Stack()))
		}
	}()
	observed, ok := e.cache.observed(key)
	if !ok {
		return time.Time{}, nil
	}
	changeTime = h.changeTime(key, observed)
	input := e.input(observed, desired.Resolve(observed.Service, observed.Candidates))
	input.ChangeTime = changeTime
	return changeTime, e.carryOut(h, key, pack.Make(input))
}

// carryOut makes the writes of a plan, one after the other. A write that fails
// stops no other, except that slices stay whose endpoints were to be found in
// the slice that could not be written.
func (e *Engine) carryOut(h *holding, key Key, plan pack.Plan) error {
	var failures []error
	for _, change := range plan.Changes {
		if len(failures) > 0 && change.Supersedes() {
			continue
		}
		stored, err := e.writer.Write(h.ctx, change)
		switch {
		case h.ctx.Err() != nil:
			return h.ctx.Err()
		case errors.Is(err, apply.ErrNamespaceTerminating):
			e.logger.Debug("slice not created", "service", key.String(), "error", err)
		case err != nil:
			failures = append(failures, err)
		default:
			h.wrote(key, change.Verb, stored, time.Now())
			e.metrics.change(change.Verb)
		}
	}
	return errors.Join(failures...)
}
