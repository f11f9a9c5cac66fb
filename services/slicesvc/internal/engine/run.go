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

// Run brings the slices of every Service in line and keeps them so for one
// term: until ctx, which every write is made with, ends and all workers have
// returned. The cache must be filled before. It reports about once a second how
// the work goes as a whole; one Service that fails is not a failure of the work.
// Only one Run may be in progress.
func (e *Engine) Run(ctx context.Context, report func(error)) error {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstRetry, lastRetry)
	work := workqueue.NewTypedRateLimitingQueue(limiter)
	e.ledger.open(work)
	for _, key := range e.Keys("") {
		work.Add(key)
	}

	var busy atomic.Int32
	var workers sync.WaitGroup
	for range e.cfg.Workers {
		workers.Go(func() { e.work(ctx, work, &busy) })
	}
	e.reportHealth(ctx, work, &busy, report)

	e.ledger.close()
	work.ShutDown()
	workers.Wait()
	return nil
}

// work takes Services from the queue until it is shut down or the term ends.
func (e *Engine) work(ctx context.Context, work queue, busy *atomic.Int32) {
	for {
		key, shutDown := work.Get()
		if shutDown {
			return
		}
		if ctx.Err() != nil {
			work.Done(key)
			return
		}
		busy.Add(1)
		e.process(ctx, work, key)
		work.Done(key)
		busy.Add(-1)
	}
}

// process makes one pass over a Service and sees to it that another follows
// where one is needed.
func (e *Engine) process(ctx context.Context, work queue, key Key) {
	start := time.Now()
	wait, err := e.pass(ctx, key)
	if ctx.Err() != nil {
		return
	}
	switch {
	case wait > 0:
		e.metrics.pass(resultStale, time.Since(start))
		work.AddAfter(key, wait)
	case errors.Is(err, apply.ErrConflict):
		e.metrics.pass(resultConflict, time.Since(start))
		work.AddRateLimited(key)
		e.logger.Debug("slices changed under a plan", "service", key.String(), "error", err)
	case err != nil:
		e.metrics.pass(resultError, time.Since(start))
		work.AddRateLimited(key)
		e.logger.Warn("service failed, will be tried again", "service", key.String(), "error", err)
	default:
		e.metrics.pass(resultSuccess, time.Since(start))
		work.Forget(key)
	}
}

// pass looks at a Service, plans and writes. If wait is positive, the cache is
// behind our own writes and nothing was done.
func (e *Engine) pass(ctx context.Context, key Key) (wait time.Duration, err error) {
	service, ok := e.cache.service(key)
	if !ok || index.Management(service) != index.Managed {
		e.ledger.forget(key)
		return 0, nil
	}
	if wait := e.ledger.begin(key, service.UID, time.Now()); wait > 0 {
		return wait, nil
	}
	// The cache is looked at after begin found it fresh, never before: what
	// arrives in between can only make it fresher.
	changeTime, err := e.reconcile(ctx, key)
	if ctx.Err() != nil {
		e.ledger.abandon(key)
		return 0, err
	}
	e.ledger.end(key, changeTime, err, time.Now())
	return 0, err
}

// reconcile plans a Service and carries the plan out. Whatever breaks, breaks
// for this Service alone.
func (e *Engine) reconcile(ctx context.Context, key Key) (changeTime time.Time, err error) {
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
	changeTime = e.ledger.changeTime(key, observed)
	input := e.input(observed, desired.Resolve(observed.Service, observed.Candidates))
	input.ChangeTime = changeTime
	return changeTime, e.carryOut(ctx, key, pack.Make(input))
}

// carryOut makes the writes of a plan, one after the other. A write that fails
// stops no other, except that slices stay whose endpoints were to be found in
// the slice that could not be written.
func (e *Engine) carryOut(ctx context.Context, key Key, plan pack.Plan) error {
	var failures []error
	for _, change := range plan.Changes {
		if len(failures) > 0 && change.Supersedes() {
			continue
		}
		stored, err := e.writer.Write(ctx, change)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, apply.ErrNamespaceTerminating):
			e.logger.Debug("slice not created", "service", key.String(), "error", err)
		case err != nil:
			failures = append(failures, err)
		default:
			e.ledger.wrote(key, change.Verb, stored, time.Now())
			e.metrics.change(change.Verb)
		}
	}
	return errors.Join(failures...)
}
