package slicecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// Key names a Service, a Pod or a slice.
type Key = index.Key

func keyOf(namespace, name string) Key { return Key{Namespace: namespace, Name: name} }

var (
	// ErrServiceNotFound is returned for a Service that does not exist.
	ErrServiceNotFound = errors.New("no such service")
	// ErrPodNotFound is returned for a Pod that does not exist.
	ErrPodNotFound = errors.New("no such pod")
	// ErrUnmanaged is returned for a Service whose slices are not written here.
	ErrUnmanaged = errors.New("service is not managed")
	// ErrSlicesUnread is wrapped by a sync that planned nothing, because the current state of a
	// slice could not be read.
	ErrSlicesUnread = errors.New("slices of the service cannot be read")
	// ErrShardNotHeld is returned if this replica does not hold, or no longer holds, the shard.
	ErrShardNotHeld = errors.New("shard is not held here")
)

const (
	// A failed sync is repeated after minRetryDelay, then after twice as long each time up to
	// maxRetryDelay, without end.
	minRetryDelay = 100 * time.Millisecond
	maxRetryDelay = time.Minute
	// maxEventRetryDelay bounds the delay of a failing Service whose Pods change.
	maxEventRetryDelay = time.Second
	// maxThrottleDelay bounds the pause that kube-apiserver asks a worker for: its value may be
	// wrong.
	maxThrottleDelay = 10 * time.Second
	// reportPeriod is how often Run reports to the held shards.
	reportPeriod = time.Second
)

// Writer stores planned changes. It is called from several goroutines.
//
// Write blocks until the change is stored or refused. It returns the stored slice, for a deletion
// the deleted slice; the result must not be changed afterwards. A change that was planned from an
// older state fails with an error that wraps kube.ErrConflict. To delete a slice that is gone
// succeeds.
type Writer interface {
	Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error)
}

// Reader reads the current state of slices, not that of the cache. It is called from several
// goroutines.
type Reader interface {
	// Get returns nil if there is no such slice.
	Get(ctx context.Context, slice Key) (*discoveryv1.EndpointSlice, error)
	// List returns the metadata of all slices with our managed-by label.
	List(ctx context.Context) (slices []metav1.ObjectMeta, resourceVersion string, err error)
}

// Batcher decides how long changes of Pods and Nodes wait, so that one sync answers several. Its
// methods are called from several goroutines and must not block.
type Batcher interface {
	// Delay returns how long the Service waits from now on.
	Delay(now time.Time, change BatchedChange) time.Duration
	// Wrote records a write.
	Wrote(now time.Time, took time.Duration, err error)
}

// BatchedChange is a change of a Service that may wait for others.
type BatchedChange struct {
	// Since is the time of the first change that no sync has answered yet.
	Since time.Time
	// Urgency is the urgency of this change.
	Urgency index.Urgency
	// QueueLength is how many Services wait for a sync.
	QueueLength int
}

// Config configures a Controller.
type Config struct {
	// ManagedBy is the managed-by label of the slices that are written.
	ManagedBy string
	// Shards is the number of shards into which Services are divided.
	Shards               int
	MaxEndpointsPerSlice int
	// Workers is how many Services are synced at the same time, over all shards.
	Workers int
	// DeleteUnmanagedSlices deletes the slices of a Service that is no longer managed.
	DeleteUnmanagedSlices bool
	// CompactAfter is the time without writes after which a Service is compacted; 0 for never.
	CompactAfter time.Duration
}

// Deps are the dependencies of a Controller. Writer and Logger are required.
type Deps struct {
	Writer Writer
	// Reader makes up for a late cache. Without it a term begins with the state of the cache, and a
	// conflict is resolved when the watch shows the slice.
	Reader Reader
	// Batcher delays syncs after changes of Pods and Nodes. Without it they start at once.
	Batcher Batcher
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	Events  record.EventSink
}

// Controller syncs the slices of all Services. Its methods are safe for concurrent use.
type Controller struct {
	cfg      Config
	deps     Deps
	logger   *slog.Logger
	metrics  *metrics
	upstream *upstreamMetrics
	events   *serviceEvents
	cache    *cache
	shards   *shardTracker
	changes  *changeLog
	lists    *sliceLister
	budget   *compactionBudget
	// orphanedReads has the slices to read after their term has ended.
	orphanedReads *pendingReads
	running       chan struct{} // closed by Run
}

// New returns a Controller with an empty cache. It starts nothing.
func New(cfg Config, deps Deps) (*Controller, error) {
	c := &Controller{
		cfg:           cfg,
		deps:          deps,
		logger:        deps.Logger,
		events:        newServiceEvents(deps.Events),
		cache:         newCache(cfg.ManagedBy, cfg.Shards),
		shards:        newShardTracker(cfg.Shards),
		changes:       newChangeLog(),
		budget:        newCompactionBudget(),
		orphanedReads: newPendingReads(),
		running:       make(chan struct{}),
	}
	if deps.Reader != nil {
		c.lists = newSliceLister(deps.Reader, cfg.Shards)
	}
	var err, upstreamErr error
	c.metrics, err = newMetrics(deps.Metrics, c.QueueLength)
	c.upstream, upstreamErr = newUpstreamMetrics(deps.Metrics, c.sizes)
	if err := errors.Join(err, upstreamErr); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return c, nil
}

// Run syncs the Services of the held shards until ctx ends and its workers have returned. It must
// be called once, concurrently with RunShard.
func (c *Controller) Run(ctx context.Context) error {
	c.events.start(ctx)
	queue := c.shards.openQueue()
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

	c.events.stop()
	c.shards.closeQueue()
	queue.ShutDown()
	workers.Wait()
	return nil
}

// RunShard syncs the Services of a shard for one term: until ctx ends and all syncs of the shard
// have returned. Every write uses ctx. The cache must be filled before. About once a second it
// reports the health of all held shards together: one failing Service is no failure of the loop.
// Different shards may run concurrently.
func (c *Controller) RunShard(ctx context.Context, shard int, report func(error)) error {
	select {
	case <-ctx.Done():
		return nil
	case <-c.running:
	}
	owned := newOwnedShard(ctx, shard, report)
	if err := c.shards.acquire(owned); err != nil {
		return err
	}
	defer func() { c.orphanedReads.add(c.shards.release(owned)) }()
	if !c.catchUp(owned) {
		return nil
	}
	owned.markCaughtUp()
	for _, key := range c.cache.shardKeys(shard) {
		c.requestSync(key, syncCause{trigger: ByTerm}, index.Normal)
	}
	<-ctx.Done()
	return nil
}

// Counts returns the sizes of some shards, held or not.
func (c *Controller) Counts(shards []int) index.Counts { return c.cache.counts(shards) }

// ResourceVersion returns the newest resourceVersion in the cache.
func (c *Controller) ResourceVersion() string { return c.cache.resourceVersion() }

// QueueLength returns how many Services wait for a sync.
func (c *Controller) QueueLength() int { return c.shards.queueLength() }

// work syncs Services until the queue is shut down and empty. While kube-apiserver throttles, the
// worker pauses without a Service, so the most urgent one is next after the pause.
func (c *Controller) work(ctx context.Context, queue serviceQueue, busy *atomic.Int32) {
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
			pause(ctx, throttled)
		}
	}
}

// process syncs a Service if a sync is due, and requests the next one if it is needed. It returns
// how long kube-apiserver asks to pause.
func (c *Controller) process(owned *ownedShard, key Key) (throttled time.Duration) {
	service, ok := c.cache.service(key)
	switch {
	case !ok:
		c.forget(key, ErrServiceNotFound)
		return 0
	case !c.handles(service):
		c.forget(key, ErrUnmanaged)
		return 0
	}
	start := time.Now()
	input, wait, ok := owned.startSync(key, service, c.budget, start)
	if !ok {
		if wait > 0 {
			c.shards.enqueue(key, priorityOf(index.Lazy), wait)
		}
		return 0
	}
	result := c.sync(owned, key, input)
	c.budget.giveBack(input.compactionWrites - len(result.plan.Changes))
	if owned.ctx.Err() != nil {
		// The end of the term cut the sync short, which says nothing about the Service.
		input.notify(syncResult{err: ErrShardNotHeld})
		return 0
	}
	now := time.Now()
	failedBefore := owned.failureOf(key).count > 0
	again, wait := owned.finishSync(key, input, result, now)
	c.shards.recordSync(key, result.err, now)
	c.report(key, service, result, now.Sub(start))
	if result.lastPlan.writes() > 0 || failedBefore != (result.err != nil) {
		c.changes.record(ServiceChange{Key: key, UID: service.UID})
	}
	input.notify(result)
	if again {
		c.shards.enqueue(key, priorityOf(index.Normal), wait)
	}
	return result.throttled
}

// handles returns whether a sync of the Service may have anything to write.
func (c *Controller) handles(service *corev1.Service) bool {
	return c.cfg.DeleteUnmanagedSlices || index.Management(service) == index.Managed
}

// forget drops the record of a Service that needs no sync. If the Service came back meanwhile, the
// causes that were dropped are replaced by a new one.
func (c *Controller) forget(key Key, reason error) {
	c.shards.forget(key, reason)
	if service, ok := c.cache.service(key); ok && c.handles(service) {
		c.requestSync(key, syncCause{trigger: ByService}, index.Urgent)
	}
}

// report publishes the result of a sync as metrics, Events and log messages.
func (c *Controller) report(key Key, service *corev1.Service, result syncResult, took time.Duration) {
	c.upstream.observeSync(service, result.written, result.err)
	c.events.syncFinished(service, result.plan.Topology, result.err)
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
func (c *Controller) reportHealth(ctx context.Context, busy *atomic.Int32) {
	ticker := time.NewTicker(reportPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		held := c.shards.held()
		idle := c.QueueLength() == 0 && busy.Load() == 0
		// If all workers are stuck no sync finishes. Without a report the loop counts as stalled.
		if syncs := c.shards.takeSyncCount(); syncs == 0 && !idle {
			continue
		}
		err := c.health(held)
		for _, owned := range held {
			owned.report(err)
		}
	}
}

// health returns an error if at least half of the managed Services of the held shards fail: then
// the cause is not the Services.
func (c *Controller) health(held []*ownedShard) error {
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
	managed := c.Counts(shards).Managed
	if failing == 0 || 2*failing < managed {
		return nil
	}
	return fmt.Errorf("%d of %d services fail, %s with: %w", failing, managed, last, latest.err)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// retryDelay returns the delay after that many failures in a row.
func retryDelay(failures int) time.Duration {
	doublings := min(max(failures-1, 0), 20) // far beyond maxRetryDelay, far below an overflow
	return min(minRetryDelay<<doublings, maxRetryDelay)
}
