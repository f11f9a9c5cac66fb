package writebackcontroller

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// gate lets writes begin as its pace allows, and learns from how they end. It is safe for concurrent use.
type limiter struct {
	origin time.Time
	ended  chan struct{} // holds a token when a write has ended since somebody looked

	mu          sync.Mutex // guards what follows
	concurrency writeback.ConcurrencyLimit
	inFlight    int
	window      window
	// row is how many writes failed since the last that was answered.
	consecutiveFailures int
	// slowed is when trouble was last taken in. Writes that began before it say nothing new when they meet the same trouble.
	cutAt monotonic.Instant
}

// window is what has been observed since it began.
type window struct {
	began monotonic.Instant
	seen  writeback.Observation
	took  time.Duration // by all answered writes together
}

func newLimiter(workers int) *limiter {
	return &limiter{origin: time.Now(), ended: make(chan struct{}, 1), concurrency: writeback.NewConcurrencyLimit(workers)}
}

func (g *limiter) now() monotonic.Instant { return monotonic.Instant(time.Since(g.origin)) }

// limit is how many writes may be under way now.
func (g *limiter) limit() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.concurrency.At(g.now())
}

// room waits for a moment until some more writes may begin, and returns how many may.
func (g *limiter) await(ctx context.Context) int {
	patience := time.NewTimer(pollPeriod)
	defer patience.Stop()
	for {
		free, enough := g.free()
		if enough {
			return free
		}
		select {
		case <-ctx.Done():
			return 0
		case <-patience.C:
			return free
		case <-g.ended:
		}
	}
}

// free is how many writes may begin, and whether that is worth asking for some. What has to wait is noted.
func (g *limiter) free() (free int, enough bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	limit := g.concurrency.At(g.now())
	free = max(limit-g.inFlight, 0)
	enough = free > limit/8
	if limit > 0 && !enough {
		g.window.seen.Saturated = true
	}
	return free, enough
}

// enter begins a write for which there is room.
func (g *limiter) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight++
}

// leave ends a write that was let in. Trouble is reacted to at once, or a window's worth of writes would run into it.
func (g *limiter) end(v writeOutcome, took, pause time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.inFlight--
	stale := now.Add(-took) < g.cutAt
	switch {
	case v == answered:
		g.consecutiveFailures = 0
		g.window.seen.Answered++
		g.window.took += took
	case v == throttled && !stale:
		g.consecutiveFailures = 0
		g.window.seen.Throttled++
		g.window.seen.Pause = pause
		g.slow(now)
	case v == failed && !stale:
		g.consecutiveFailures++
		g.window.seen.Failed++
		if g.consecutiveFailures >= g.concurrency.At(now) {
			g.window = window{seen: writeback.Observation{Failed: g.consecutiveFailures}}
			g.slow(now)
		}
	}
	if now.Sub(g.window.began) >= writeback.ObservationWindow {
		g.learn(now)
	}
	select {
	case g.ended <- struct{}{}:
	default:
	}
}

func (g *limiter) slow(now monotonic.Instant) {
	g.learn(now)
	g.cutAt, g.consecutiveFailures = now, 0
}

// learn ends a window.
func (g *limiter) learn(now monotonic.Instant) {
	if seen := &g.window.seen; seen.Answered > 0 {
		seen.Latency = g.window.took / time.Duration(seen.Answered)
	}
	g.concurrency = g.concurrency.Next(now, g.window.seen)
	g.window = window{began: now}
}

// verdict is what the end of a write says about the kube-apiserver.
type writeOutcome uint8

const (
	answered writeOutcome = iota
	throttled
	failed
	// unheard writes were not sent, or were broken off for reasons of our own.
	inconclusive
)

func outcomeOf(verb Verb, err error) writeOutcome {
	var status apierrors.APIStatus
	var panicked *panicError
	switch {
	case errors.As(err, &panicked):
		return inconclusive
	case err == nil && verb == VerbNone:
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
