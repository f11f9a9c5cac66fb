package writebackcontroller

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// limiter applies a writeback.ConcurrencyLimit and feeds it with the outcomes of writes. It is safe
// for concurrent use.
type limiter struct {
	origin time.Time
	ended  chan struct{} // has an item if a write ended since the last await

	mu          sync.Mutex // guards the fields below
	concurrency writeback.ConcurrencyLimit
	inFlight    int
	window      window
	// consecutiveFailures counts failed writes since the last answered one.
	consecutiveFailures int
	// cutAt is when the limit was last cut. Writes that began before it meet the same trouble and
	// are not counted.
	cutAt monotonic.Instant
}

// window collects the outcomes since its begin.
type window struct {
	began   monotonic.Instant
	seen    writeback.Observation
	latency time.Duration // sum over the answered writes
}

func newLimiter(workers int) *limiter {
	return &limiter{origin: time.Now(), ended: make(chan struct{}, 1), concurrency: writeback.NewConcurrencyLimit(workers)}
}

func (l *limiter) now() monotonic.Instant { return monotonic.Instant(time.Since(l.origin)) }

// limit returns how many writes may be in flight now.
func (l *limiter) limit() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.concurrency.At(l.now())
}

// await waits up to pollPeriod until several writes may begin, and returns how many may.
func (l *limiter) await(ctx context.Context) int {
	timeout := time.NewTimer(pollPeriod)
	defer timeout.Stop()
	for {
		free, enough := l.free()
		if enough {
			return free
		}
		select {
		case <-ctx.Done():
			return 0
		case <-timeout.C:
			return free
		case <-l.ended:
		}
	}
}

// free returns how many writes may begin. enough reports whether that is worth a call to the
// source.
func (l *limiter) free() (free int, enough bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.concurrency.At(l.now())
	free = max(limit-l.inFlight, 0)
	enough = free > limit/8
	if limit > 0 && !enough {
		l.window.seen.Saturated = true
	}
	return free, enough
}

func (l *limiter) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight++
}

// end records the outcome of a write. Throttling and an outage end the window at once, because the
// writes of a whole window would fail otherwise.
func (l *limiter) end(outcome writeOutcome, took, pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.inFlight--
	beforeCut := now.Add(-took) < l.cutAt
	switch {
	case outcome == answered:
		l.consecutiveFailures = 0
		l.window.seen.Answered++
		l.window.latency += took
	case outcome == throttled && !beforeCut:
		l.consecutiveFailures = 0
		l.window.seen.Throttled++
		l.window.seen.Pause = pause
		l.cut(now)
	case outcome == failed && !beforeCut:
		l.consecutiveFailures++
		l.window.seen.Failed++
		if l.consecutiveFailures >= l.concurrency.At(now) {
			l.window = window{seen: writeback.Observation{Failed: l.consecutiveFailures}}
			l.cut(now)
		}
	}
	if now.Sub(l.window.began) >= writeback.ObservationWindow {
		l.endWindow(now)
	}
	select {
	case l.ended <- struct{}{}:
	default:
	}
}

func (l *limiter) cut(now monotonic.Instant) {
	l.endWindow(now)
	l.cutAt, l.consecutiveFailures = now, 0
}

func (l *limiter) endWindow(now monotonic.Instant) {
	if seen := &l.window.seen; seen.Answered > 0 {
		seen.Latency = l.window.latency / time.Duration(seen.Answered)
	}
	l.concurrency = l.concurrency.Next(now, l.window.seen)
	l.window = window{began: now}
}

// writeOutcome is what a write says about the kube-apiserver.
type writeOutcome uint8

const (
	answered writeOutcome = iota
	throttled
	failed
	// inconclusive writes were not sent, or were cancelled here.
	inconclusive
)

func outcomeOf(verb planned.Verb, err error) writeOutcome {
	var status apierrors.APIStatus
	var panicked *panicError
	switch {
	case errors.As(err, &panicked):
		return inconclusive
	case err == nil && verb == planned.None:
		return inconclusive
	case err == nil:
		return answered
	case apierrors.IsTooManyRequests(err):
		return throttled
	case isLeaseState(err):
		return inconclusive
	case errors.As(err, &status) && status.Status().Code < 500:
		return answered
	case errors.Is(err, context.Canceled):
		return inconclusive
	}
	return failed
}
