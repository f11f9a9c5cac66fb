package slicecontroller

import (
	"math"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

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

// LoadBatcher is a Batcher whose delay follows the load, or is fixed.
type LoadBatcher struct {
	mu     sync.Mutex // guards period
	period *batchPeriod
}

var _ Batcher = &LoadBatcher{}

// NewLoadBatcher returns a LoadBatcher that delays every change by fixed. If fixed is 0 the delay
// follows the load. workers is how many Services are synced at the same time.
func NewLoadBatcher(fixed time.Duration, workers int) *LoadBatcher {
	return &LoadBatcher{period: newBatchPeriod(fixed, workers)}
}

// Delay implements Batcher.
func (b *LoadBatcher) Delay(now time.Time, change BatchedChange) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.period.delay(now, change)
}

// Wrote implements Batcher.
func (b *LoadBatcher) Wrote(now time.Time, took time.Duration, err error) {
	_, throttled := kube.RetryAfter(err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.period.recordWrite(now, took, throttled)
}

const (
	// The delay of urgent changes grows from 0 at lowRate changes in a second to maxLoadDelay at
	// highRate.
	lowRate, highRate = 200.0, 600.0
	// decayTime is the time after which a past event counts a third.
	decayTime = 500 * time.Millisecond
	// normalWriteTime is the duration of a write without load.
	normalWriteTime = 50 * time.Millisecond
	maxLoadDelay    = time.Second
)

// batchPeriod computes how long changes of a Service wait for others, from the load: the rate of
// changes, the length of the queue, and the latency of kube-apiserver, and throttled writes. A
// conflict concerns one slice and is no load. The delay counts from the first change that waits. In
// the same state a more urgent change never waits longer.
//
//	urgency  without load  at most  changes
//	Urgent   0             1 s      an endpoint starts or stops being ready or serving, or goes
//	Normal   1 s           2 s      an endpoint comes that is not ready, and may soon be
//	Lazy     1 s           5 s      labels, and other fields that no client routes by
//
// With a fixed period, as kube-controller-manager's --endpointslice-updates-batch-period, every
// change waits for that long.
//
// It reads no clock. Time may stand still or go backwards. It is not safe for concurrent use.
type batchPeriod struct {
	fixed   time.Duration
	workers int

	// changes and writes count; throttled counts writes; writeSeconds adds up durations.
	changes, writes, throttled, writeSeconds decayingSum
}

func newBatchPeriod(fixed time.Duration, workers int) *batchPeriod {
	return &batchPeriod{fixed: fixed, workers: max(workers, 1)}
}

// delay records a change and returns how much longer its Service waits.
func (p *batchPeriod) delay(now time.Time, change BatchedChange) time.Duration {
	p.changes.add(now, 1)
	return max(p.period(now, change)-max(now.Sub(change.Since), 0), 0)
}

func (p *batchPeriod) recordWrite(now time.Time, took time.Duration, throttled bool) {
	p.writes.add(now, 1)
	p.writeSeconds.add(now, took.Seconds())
	if throttled {
		p.throttled.add(now, 1)
	}
}

// period returns how long a change waits, counted from the first change that waits.
func (p *batchPeriod) period(now time.Time, change BatchedChange) time.Duration {
	if p.fixed > 0 {
		return p.fixed
	}
	load := p.loadDelay(now, change.QueueLength)
	switch change.Urgency {
	case index.Urgent:
		return load
	case index.Normal:
		return time.Second + load
	default:
		return time.Second + 4*load
	}
}

// loadDelay returns the delay of urgent changes, at most maxLoadDelay.
func (p *batchPeriod) loadDelay(now time.Time, queueLength int) time.Duration {
	rate := p.changes.at(now) / decayTime.Seconds()
	seconds := min(max(rate-lowRate, 0)/(highRate-lowRate), 1)
	// A sum of less than one write is too old to give an average.
	writes := max(p.writes.at(now), 1)
	writeTime := p.writeSeconds.at(now) / writes
	seconds += p.throttled.at(now) / writes
	seconds += max(writeTime-normalWriteTime.Seconds(), 0)
	// Half of the time that the queue takes: changes gather there, too.
	seconds += writeTime * float64(max(queueLength-p.workers, 0)) / float64(2*p.workers)
	return time.Duration(min(seconds, maxLoadDelay.Seconds()) * float64(time.Second)).Round(time.Millisecond)
}

// decayingSum is a sum whose parts decay exponentially.
type decayingSum struct {
	sum     float64
	updated time.Time
}

func (s *decayingSum) add(now time.Time, amount float64) {
	s.sum = s.at(now) + amount
	if now.After(s.updated) {
		s.updated = now
	}
}

func (s *decayingSum) at(now time.Time) float64 {
	age := now.Sub(s.updated)
	if s.sum == 0 || age <= 0 {
		return s.sum
	}
	return s.sum * math.Exp(-age.Seconds()/decayTime.Seconds())
}
