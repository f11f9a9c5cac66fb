package slicecontroller

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

const (
	// A failed pass is repeated after firstRetry, then after twice as long, up
	// to lastRetry, for ever: a Service is never dropped.
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
	// eagerRetry is how often a Service that fails is tried at most when its pods
	// change all the time.
	eagerRetry = time.Second
	// longestRest bounds how long a worker rests because the kube-apiserver asks for it.
	longestRest = 10 * time.Second
	// healthPeriod is how often Run reports.
	healthPeriod = time.Second
)

// Run makes the passes over the Services of the shards that are held, until ctx
// ends and its workers have returned. Without a shard it does nothing. It runs
// once, beside whatever calls Hold.
func (e *Engine) Run(ctx context.Context) error {
	work := e.ledger.open()
	close(e.running)

	var busy atomic.Int32
	var workers sync.WaitGroup
	for range e.cfg.Workers {
		workers.Go(func() { e.work(ctx, work, &busy) })
	}
	if e.deps.Reader != nil {
		workers.Go(func() { e.readLeftovers(ctx) })
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
	defer func() { e.leftovers.add(e.ledger.release(h)) }()
	if !e.catchUp(h) {
		return nil
	}
	h.begin()
	for _, key := range e.cache.shardKeys(shard) {
		e.mark(key, cause{trigger: ByTerm}, index.Normal)
	}
	<-ctx.Done()
	return nil
}

// work takes Services from the queue until it is shut down and empty. A Service
// whose shard was lost while it waited is dropped. When the kube-apiserver asks to
// be left alone the worker rests, without a Service in its hands: what is most
// urgent when the rest is over goes first.
func (e *Engine) work(ctx context.Context, work queue, busy *atomic.Int32) {
	for {
		key, shutDown := work.Get()
		if shutDown {
			return
		}
		var rest time.Duration
		if h := e.ledger.enter(key); h != nil {
			busy.Add(1)
			rest = e.process(h, key)
			busy.Add(-1)
			h.underway.Done()
		}
		work.Done(key)
		if rest > 0 {
			pause(ctx, rest)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// process makes one pass over a Service, if one is due, and sees to it that
// another follows where one is needed. It returns how long the kube-apiserver
// asks to be left alone, 0 if it does not.
func (e *Engine) process(h *holding, key Key) (rest time.Duration) {
	service, ok := e.cache.service(key)
	switch {
	case !ok:
		e.drop(key, ErrNoService)
		return 0
	case !e.serves(service):
		e.drop(key, ErrUnmanaged)
		return 0
	}
	start := time.Now()
	taken, wait, ok := h.take(key, service, e.budget, start)
	if !ok {
		if wait > 0 {
			e.ledger.enqueue(key, rankOf(index.Lazy), wait)
		}
		return 0
	}
	how := e.pass(h, key, taken)
	e.budget.giveBack(taken.budget - len(how.plan.Changes))
	if h.ctx.Err() != nil {
		// Cut short by the end of the term, which says nothing about the Service.
		taken.answer(outcome{err: ErrNotHeld})
		return 0
	}
	now := time.Now()
	failed := h.failureOf(key).count > 0
	again, wait := h.end(key, taken, how, now)
	e.ledger.ended(key, how.err, now)
	e.tell(key, service, how, now.Sub(start))
	if how.last.writes() > 0 || failed != (how.err != nil) {
		e.feed.touch(Changed{Key: key, UID: service.UID})
	}
	taken.answer(how)
	if again {
		e.ledger.enqueue(key, rankOf(index.Normal), wait)
	}
	return how.rest
}

// serves reports whether there may be anything to do for a Service.
func (e *Engine) serves(service *corev1.Service) bool {
	return e.cfg.CleanUp || index.Management(service) == index.Managed
}

// drop forgets a Service that was found to need nothing. If it has come back
// since, what it was marked for is forgotten, too, and it is marked anew.
func (e *Engine) drop(key Key, why error) {
	e.ledger.forget(key, why)
	if service, ok := e.cache.service(key); ok && e.serves(service) {
		e.mark(key, cause{trigger: ByService}, index.Urgent)
	}
}

// tell counts and logs how a pass went, and tells whoever wants to know.
func (e *Engine) tell(key Key, service *corev1.Service, how outcome, took time.Duration) {
	if e.deps.Passed != nil {
		e.deps.Passed(Pass{
			Service:  service,
			Written:  how.written,
			Topology: how.plan.Topology,
			Err:      how.err,
		})
	}
	switch {
	case errors.Is(how.err, kube.ErrConflict):
		e.metrics.pass(resultConflict, took)
		e.logger.Debug("slices changed under a plan", "service", key.String(), "error", how.err)
	case how.rest > 0:
		e.metrics.pass(resultError, took)
		e.logger.Debug("kube-apiserver asks to be left alone", "service", key.String(), "for", how.rest, "error", how.err)
	case how.err != nil:
		e.metrics.pass(resultError, took)
		e.logger.Warn("service failed, will be tried again", "service", key.String(), "error", how.err)
	default:
		e.metrics.pass(resultSuccess, took)
	}
}

// retryPause is how long a Service rests that failed so often in a row.
func retryPause(failures int) time.Duration {
	doublings := min(max(failures-1, 0), 20) // far beyond lastRetry, far below an overflow
	return min(firstRetry<<doublings, lastRetry)
}
