package review

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// Fresh is how long an answer counts.
	Fresh = 10 * time.Second
	// Stale is how long a positive answer counts for a caller that may use a stale one.
	Stale = 5 * time.Minute

	// renewAge is the age at which the use of an answer starts the next review.
	renewAge = 7 * time.Second
	// renewal is the age up to which Renew uses an answer.
	renewal = 2 * time.Second
	// patience is how long a call that has a stale answer waits for a fresh one.
	patience = 250 * time.Millisecond
	// maxWait is how long a call without an answer waits. The review goes on after it, so that the
	// next call finds the answer of a slow kube-apiserver.
	maxWait = 5 * time.Second
	// maxReview bounds one review.
	maxReview = 30 * time.Second
	// pause is how long after a failed review a stale answer is used without another one.
	pause = time.Second

	// maxConcurrent and maxWaiting bound the reviews that run, and all reviews.
	maxConcurrent = 64
	maxWaiting    = 4096
	// ownConcurrent and ownWaiting bound those of one owner.
	ownConcurrent = maxConcurrent / 4
	ownWaiting    = maxWaiting / 8
	// MaxAnswers and MaxRefusals bound what a Cache keeps; the answers that were used last stay.
	MaxAnswers  = 20_000
	MaxRefusals = 5_000
	// maxOwned bounds the positive answers of one owner.
	maxOwned = MaxAnswers / 20
)

// Ask asks the kube-apiserver. wasPositive says that the answer before was positive; positive says
// whether the value may be used when it is stale. An error means that there is no answer.
type Ask[V any] func(ctx context.Context, wasPositive bool) (value V, positive bool, err error)

// Answer is the result of a review.
type Answer[V any] struct {
	Value V
	// Stale says that the value is older than Fresh and could not be reviewed again.
	Stale bool
}

// Cache keeps answers of one kind. It is safe for concurrent use.
type Cache[V any] struct {
	metrics *kindMetrics
	// kept has positive answers, refused the others; never both for one key.
	kept    *answers[V]
	refused *cache.LRUExpireCache
	slots   chan struct{} // one element for each review that runs

	life  context.Context // ends at Close
	end   context.CancelFunc
	tasks sync.WaitGroup // reviews

	mu      sync.Mutex // guards the fields below and entry.failed
	flights map[Key]*flight[V]
	shares  map[owner]*share // of the owners of flights
	closed  bool
}

// share has the reviews of one owner.
type share struct {
	flights int
	slots   chan struct{} // one element for each review that runs, or waits for its turn
}

// entry is an answer. It is immutable, except failed.
type entry[V any] struct {
	value    V
	positive bool
	at       time.Time
	failed   time.Time // when the last review after this answer failed
}

// flight is a review in progress or, when done is closed, its result.
type flight[V any] struct {
	started time.Time
	done    chan struct{}
	value   V
	err     error
}

// NewCache returns an empty cache whose reviews are counted as kind. It starts nothing.
func NewCache[V any](metrics *Metrics, kind string) *Cache[V] {
	life, end := context.WithCancel(context.Background())
	c := &Cache[V]{
		metrics: metrics.of(kind),
		kept:    newAnswers[V](), shares: map[owner]*share{}, refused: cache.NewLRUExpireCache(MaxRefusals),
		slots: make(chan struct{}, maxConcurrent), life: life, end: end, flights: map[Key]*flight[V]{},
	}
	metrics.sizes.add(kind, func() (allowed, denied int) { return c.kept.size(), len(c.refused.Keys()) })
	return c
}

// Close cancels the reviews in progress and waits for them. Later questions without a fresh answer
// fail.
func (c *Cache[V]) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end()
	c.tasks.Wait()
}

// Fresh returns a fresh answer without asking; false if a call of Get would ask. A caller that
// prepares nothing for a question spares the memory.
func (c *Cache[V]) Fresh(key Key) (value V, found bool) {
	known := c.lookup(key)
	if known == nil {
		return value, false
	}
	if age := time.Since(known.at); age >= Fresh || known.positive && age >= renewAge {
		return value, false
	}
	c.metrics.hits.Inc()
	return known.value, true
}

// Get returns the answer to the question of key. Without a fresh one it asks, and waits as long as
// ctx lasts, but at most a few seconds. mayBeStale says whether the caller takes a stale answer.
func (c *Cache[V]) Get(ctx context.Context, key Key, mayBeStale bool, ask Ask[V]) (Answer[V], error) {
	known := c.lookup(key)
	if known != nil {
		age := time.Since(known.at)
		if known.positive && age >= renewAge && age < Fresh {
			c.join(key, known, true, ask)
		}
		if age < Fresh {
			c.metrics.hits.Inc()
			return Answer[V]{Value: known.value}, nil
		}
	}
	if known == nil || !known.positive || !mayBeStale {
		return c.wait(ctx, c.join(key, known, false, ask))
	}
	running := c.join(key, known, true, ask)
	if running != nil && running.within(ctx, patience-time.Since(running.started)) == nil && running.err == nil {
		return Answer[V]{Value: running.value}, nil
	}
	c.metrics.stale.Inc()
	return Answer[V]{Value: known.value, Stale: true}, nil
}

// Renew is Get for a caller that has to hear of a change soon: it uses an answer of the last
// seconds, and no stale one.
func (c *Cache[V]) Renew(ctx context.Context, key Key, ask Ask[V]) (V, error) {
	known := c.lookup(key)
	if known != nil && time.Since(known.at) < renewal {
		c.metrics.hits.Inc()
		return known.value, nil
	}
	answer, err := c.wait(ctx, c.join(key, known, false, ask))
	return answer.Value, err
}

// wait returns the answer of a review, for a caller that has none.
func (c *Cache[V]) wait(ctx context.Context, running *flight[V]) (Answer[V], error) {
	if err := running.within(ctx, maxWait); err != nil {
		return Answer[V]{}, err
	}
	if running.err != nil {
		return Answer[V]{}, running.err
	}
	return Answer[V]{Value: running.value}, nil
}

func (c *Cache[V]) lookup(key Key) *entry[V] {
	if known := c.kept.get(key); known != nil {
		return known
	}
	found, _ := c.refused.Get(key)
	known, _ := found.(*entry[V])
	return known
}

// errClosed and errBusy are failed reviews.
var (
	errClosed = errors.New("this process stops")
	errBusy   = fmt.Errorf("%d reviews wait already", maxWaiting)
	errOwn    = fmt.Errorf("%d reviews of this user wait already", ownWaiting)
)

// join returns the review of key that runs, or starts one. After a review that failed a moment ago,
// it returns nil if the caller can do without.
func (c *Cache[V]) join(key Key, known *entry[V], canDoWithout bool, ask Ask[V]) *flight[V] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if running := c.flights[key]; running != nil {
		return running
	}
	if canDoWithout && known != nil && !known.failed.IsZero() && time.Since(known.failed) < pause {
		return nil
	}
	next := &flight[V]{started: time.Now(), done: make(chan struct{})}
	switch {
	case c.closed:
		next.err = errClosed
		close(next.done)
	case len(c.flights) >= maxWaiting:
		next.err = errBusy
		close(next.done)
	case c.shareOf(key).flights >= ownWaiting:
		next.err = errOwn
		close(next.done)
	default:
		own := c.shareOf(key)
		own.flights++
		c.shares[key.owner()] = own
		c.flights[key] = next
		c.tasks.Go(func() { c.review(key, known, next, own, ask) })
	}
	return next
}

// shareOf needs c.mu.
func (c *Cache[V]) shareOf(key Key) *share {
	if own := c.shares[key.owner()]; own != nil {
		return own
	}
	return &share{slots: make(chan struct{}, ownConcurrent)}
}

// review asks once and keeps the answer.
func (c *Cache[V]) review(key Key, known *entry[V], running *flight[V], own *share, ask Ask[V]) {
	value, positive, err := c.ask(ask, own, known != nil && known.positive)
	running.value, running.err = value, err
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, key)
	if own.flights--; own.flights == 0 {
		delete(c.shares, key.owner())
	}
	if err == nil {
		c.keep(key, &entry[V]{value: value, positive: positive, at: time.Now()})
	} else if known != nil {
		known.failed = time.Now()
	}
	close(running.done)
}

// ask waits for a slot no longer than a call would wait for the answer.
func (c *Cache[V]) ask(ask Ask[V], own *share, wasPositive bool) (value V, positive bool, err error) {
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case own.slots <- struct{}{}:
		defer func() { <-own.slots }()
	case <-timer.C:
		return value, false, fmt.Errorf("%d reviews of this user run, and none has ended within %s", ownConcurrent, maxWait)
	case <-c.life.Done():
		return value, false, errClosed
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-timer.C:
		return value, false, fmt.Errorf("%d reviews run, and none has ended within %s", maxConcurrent, maxWait)
	case <-c.life.Done():
		return value, false, errClosed
	}
	ctx, cancel := context.WithTimeout(c.life, maxReview)
	defer cancel()
	begun := time.Now()
	value, positive, err = ask(ctx, wasPositive)
	c.metrics.reviewed(positive, err, time.Since(begun))
	return value, positive, err
}

// keep replaces the answer of key.
func (c *Cache[V]) keep(key Key, answer *entry[V]) {
	if answer.positive {
		c.kept.add(key, answer)
		c.refused.Remove(key)
		return
	}
	c.refused.Add(key, answer, Fresh)
	c.kept.remove(key)
}

// within waits for the result at most limit.
func (f *flight[V]) within(ctx context.Context, limit time.Duration) error {
	select {
	case <-f.done:
		return nil
	default:
	}
	if limit <= 0 {
		return context.DeadlineExceeded
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-f.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("no answer within %s", limit)
	case <-ctx.Done():
		return ctx.Err()
	}
}
