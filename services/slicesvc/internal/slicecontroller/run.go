package slicecontroller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

// reportPeriod is how often Run reports to the held shards.
const reportPeriod = time.Second

// Run syncs the Services of the held shards until ctx ends and its workers have returned. It must
// be called once, concurrently with RunShard.
func (c *Controller) Run(ctx context.Context) error {
	c.events.Start(ctx)
	defer c.events.Stop()
	return c.Syncer.Run(ctx)
}

// Run syncs the keys of the held shards until ctx ends and its workers have returned. It must be
// called once, concurrently with RunShard.
func (c *Syncer) Run(ctx context.Context) error {
	queue := c.shards.openQueue()
	c.orphans = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[Key](minRetryDelay, maxRetryDelay))
	close(c.running)

	var busy atomic.Int32
	var workers sync.WaitGroup
	for range c.cfg.Workers {
		workers.Go(func() { c.work(ctx, queue, &busy) })
	}
	if c.deps.Reader != nil {
		workers.Go(func() { c.readOrphaned(ctx) })
	}
	c.reportHealth(ctx, &busy)

	c.shards.closeQueue()
	queue.ShutDown()
	c.orphans.ShutDown()
	workers.Wait()
	return nil
}

// RunShard syncs the Services of a shard for one term: until ctx ends and all syncs of the shard
// have returned. Every write uses ctx. The cache must be filled before. About once a second it
// reports the health of all held shards together: one failing Service is no failure of the loop.
// Different shards may run concurrently.
func (c *Syncer) RunShard(ctx context.Context, shard int, report func(error)) error {
	select {
	case <-ctx.Done():
		return nil
	case <-c.running:
	}
	owned := newOwnedShard(ctx, shard, report)
	if err := c.shards.acquire(owned); err != nil {
		return err
	}
	defer func() {
		for _, slice := range c.shards.release(owned) {
			c.orphans.Add(slice)
		}
	}()
	if !c.catchUp(owned) {
		return nil
	}
	owned.markCaughtUp()
	c.source.termBegan(shard)
	for _, key := range c.source.shardKeys(shard) {
		c.requestSync(key, syncCause{trigger: ByTerm, urgency: index.Normal})
	}
	<-ctx.Done()
	return nil
}

// work syncs Services until the queue is shut down and empty. While kube-apiserver throttles, the
// worker pauses without a Service, so the most urgent one is next after the pause.
func (c *Syncer) work(ctx context.Context, queue serviceQueue, busy *atomic.Int32) {
	for {
		key, shutDown := queue.Get()
		if shutDown {
			return
		}
		var throttled time.Duration
		if owned := c.shards.startWork(key); owned != nil {
			busy.Add(1)
			throttled = c.process(owned, key)
			busy.Add(-1)
			owned.syncs.Done()
		}
		queue.Done(key)
		if throttled > 0 {
			backoff.Sleep(ctx, throttled)
		}
	}
}

// process syncs a Service if a sync is due, and requests the next one if it is needed. It returns
// how long kube-apiserver asks to pause.
func (c *Syncer) process(owned *ownedShard, key Key) (throttled time.Duration) {
	object, err := c.source.object(key)
	if err != nil {
		c.forget(key, err)
		return 0
	}
	start := time.Now()
	input, wait, ok := owned.startSync(key, object, c.budget, start)
	if !ok {
		if wait > 0 {
			c.shards.enqueue(key, background, wait)
		}
		return 0
	}
	ctx, span := c.startSpan(owned, key, &input, start)
	input.span = span.Reference()
	result := c.sync(ctx, owned, key, &input)
	endSpan(span, &result)
	if input.compacting {
		c.budget.finish(input.compactionWrites - len(result.plan.Changes))
	}
	if owned.ctx.Err() != nil {
		// The end of the term cut the sync short, which says nothing about the Service.
		result.err = ErrShardNotHeld
		input.notify(result)
		return 0
	}
	now := time.Now()
	failedBefore := owned.failureOf(key).count > 0
	next := owned.finishSync(key, input, result, now)
	if !result.rejected {
		c.shards.recordSync(key, result.complete(), now)
		c.report(key, result, now.Sub(start))
		c.recordSync(owned, key, object, &result, failedBefore)
		c.source.finished(key, object, &result, now.Sub(start))
	}
	if result.lastPlan.writes() > 0 || input.firstSync || failedBefore || result.err != nil {
		c.source.changed(key)
	}
	input.notify(result)
	if next.needed {
		c.shards.enqueue(key, next.priority, next.delay)
	} else if _, err := c.source.object(key); err != nil {
		c.forget(key, err) // the sync deleted the last slice
	}
	return result.throttled
}

// forget drops the record of a Service that needs no sync. If the Service came back meanwhile, the
// causes that were dropped are replaced by a new one.
func (c *Syncer) forget(key Key, reason error) {
	c.shards.forget(key, reason)
	if _, err := c.source.object(key); err == nil {
		c.requestSync(key, syncCause{trigger: ByService, urgency: index.Urgent})
	}
}

// report publishes the result of a sync as metrics and log messages.
func (c *Syncer) report(key Key, result syncResult, took time.Duration) {
	switch {
	case errors.Is(result.err, kube.ErrConflict):
		c.metrics.observeSync(resultConflict, took)
		c.logger.Debug("slices changed since they were planned", "service", key.String(), "error", result.err)
	case result.throttled > 0:
		c.metrics.observeSync(resultError, took)
		c.logger.Debug("kube-apiserver throttles writes", "service", key.String(), "for", result.throttled, "error", result.err)
	case result.err != nil:
		c.metrics.observeSync(resultError, took)
		c.logger.Warn("cannot sync service, will retry", "service", key.String(), "error", result.err)
	default:
		c.metrics.observeSync(resultSuccess, took)
	}
}

// reportHealth reports about once a second until ctx ends. Every held shard gets the same report: a
// shard may have a single Service, whose failure is not one of the shard.
func (c *Syncer) reportHealth(ctx context.Context, busy *atomic.Int32) {
	ticker := time.NewTicker(reportPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		held := c.shards.held()
		c.expireContentions(held)
		idle := c.QueueLength() == 0 && busy.Load() == 0
		// If all workers are stuck no sync finishes. Without a report the loop counts as stalled.
		if syncs := c.shards.takeSyncCount(); syncs == 0 && !idle {
			continue
		}
		err := c.health(held)
		for _, owned := range held {
			if !owned.catchingUp() { // a blocked shard reports its cause
				owned.report(err)
			}
		}
	}
}

// health returns an error if at least half of the managed Services of the held shards fail: then
// the cause is not the Services.
func (c *Syncer) health(held []*ownedShard) error {
	var shards []int
	var failing int
	var last Key
	var latest failure
	for _, owned := range held {
		count, key, failed := owned.failing()
		shards = append(shards, owned.shard)
		failing += count
		if failed.at.After(latest.at) {
			last, latest = key, failed
		}
	}
	managed := c.source.managed(shards)
	if failing == 0 || 2*failing < managed {
		return nil
	}
	return fmt.Errorf("%d of %d services fail, %s with: %w", failing, managed, last, latest.err)
}
