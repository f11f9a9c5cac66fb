package slicecontroller

import (
	"errors"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"math"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

const (
	// free is how many changes per second are answered one by one, and full at how
	// many the window is open as far as it goes.
	free, full = 200.0, 600.0
	// memory is how fast the past is forgotten: to a third in that time.
	memory = 500 * time.Millisecond
	// brisk is how long a write may take without a sign of trouble.
	brisk = 50 * time.Millisecond
	// widest is the window that the load can open.
	widest = time.Second
)

// Pace is the state: what happened of late.
type batchPeriod struct {
	period  time.Duration
	workers int

	// changes counts changes and writes writes, both fading; so do the sums.
	changes, writes, refused, took faded
}

// New returns a Pace that has seen nothing. With a period changes wait for that
// long; with 0 it depends. workers is how many Services are worked on at the same
// time.
func newBatchPeriod(period time.Duration, workers int) *batchPeriod {
	return &batchPeriod{period: period, workers: max(workers, 1)}
}

// batchChange is one more change of a Service.
type batchChange struct {
	// Since is when the first change came that is not answered yet.
	Since time.Time
	// Urgency is that of this change.
	Urgency index.Urgency
	// Depth is how many Services are queued.
	Depth int
}

// Wait takes note of a change and returns how much longer its Service rests.
func (p *batchPeriod) Wait(now time.Time, change batchChange) time.Duration {
	p.changes.add(now, 1)
	return max(p.window(now, change)-max(now.Sub(change.Since), 0), 0)
}

// Wrote takes note of a write: how long it took, and whether it was refused as
// one too many or as outdated.
func (p *batchPeriod) Wrote(now time.Time, took time.Duration, refused bool) {
	p.writes.add(now, 1)
	p.took.add(now, took.Seconds())
	if refused {
		p.refused.add(now, 1)
	}
}

// window is how long changes rest from the first of them on.
func (p *batchPeriod) window(now time.Time, change batchChange) time.Duration {
	if p.period > 0 {
		return p.period
	}
	load := p.load(now, change.Depth)
	switch change.Urgency {
	case index.Urgent:
		return load
	case index.Normal:
		return time.Second + load
	default:
		return time.Second + 4*load
	}
}

// load is the window for what is urgent, up to widest.
func (p *batchPeriod) load(now time.Time, depth int) time.Duration {
	rate := p.changes.at(now) / memory.Seconds()
	seconds := min(max(rate-free, 0)/(full-free), 1)
	// With nearly no write in memory, what is remembered of them counts little.
	writes := max(p.writes.at(now), 1)
	each := p.took.at(now) / writes
	seconds += p.refused.at(now) / writes
	seconds += max(each-brisk.Seconds(), 0)
	// Half as long as those ahead in the queue will take: there, too, changes gather.
	seconds += each * float64(max(depth-p.workers, 0)) / float64(2*p.workers)
	return time.Duration(min(seconds, widest.Seconds()) * float64(time.Second)).Round(time.Millisecond)
}

// faded is a sum of which the older parts count less and less.
type faded struct {
	sum  float64
	last time.Time
}

func (f *faded) add(now time.Time, amount float64) {
	f.sum = f.at(now) + amount
	if now.After(f.last) {
		f.last = now
	}
}

func (f *faded) at(now time.Time) float64 {
	age := now.Sub(f.last)
	if f.sum == 0 || age <= 0 {
		return f.sum
	}
	return f.sum * math.Exp(-age.Seconds()/memory.Seconds())
}

// Batcher is a batch period that several goroutines share.
type Batcher struct {
	mu     sync.Mutex // guards period
	period *batchPeriod
}

var _ Pace = &Batcher{}

// NewBatcher returns a Batcher with a fixed period, or one that depends on the load if fixed is 0.
// workers is the number of Services that are synced at the same time.
func NewBatcher(fixed time.Duration, workers int) *Batcher {
	return &Batcher{period: newBatchPeriod(fixed, workers)}
}

// Wait returns how long a Service still waits for its sync.
func (b *Batcher) Wait(now time.Time, due Due) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.period.Wait(now, batchChange{Since: due.Since, Urgency: due.Urgency, Depth: due.Depth})
}

// Wrote records a write.
func (b *Batcher) Wrote(now time.Time, took time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.period.Wrote(now, took, throttled(err) || errors.Is(err, kube.ErrConflict))
}
