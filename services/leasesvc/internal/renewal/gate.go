package renewal

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/leaseobject"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/pace"
)

// gate lets writes begin as its pace allows, and learns from how they end. It is safe for concurrent use.
type gate struct {
	origin time.Time
	opened chan struct{} // holds a token when a write has ended since somebody looked

	mu       sync.Mutex // guards what follows
	pace     pace.Pace
	underway int
	window   window
	// row is how many writes failed since the last that was answered.
	row int
	// slowed is when trouble was last taken in. Writes that began before it say nothing new when they meet the same trouble.
	slowed monotonic.Instant
}

// window is what has been observed since it began.
type window struct {
	began monotonic.Instant
	seen  pace.Observation
	took  time.Duration // by all answered writes together
}

func newGate(workers int) *gate {
	return &gate{origin: time.Now(), opened: make(chan struct{}, 1), pace: pace.New(workers)}
}

func (g *gate) now() monotonic.Instant { return monotonic.Instant(time.Since(g.origin)) }

// limit is how many writes may be under way now.
func (g *gate) limit() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pace.Limit(g.now())
}

// room waits for a moment until some more writes may begin, and returns how many may.
func (g *gate) room(ctx context.Context) int {
	patience := time.NewTimer(poll)
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
		case <-g.opened:
		}
	}
}

// free is how many writes may begin, and whether that is worth asking for some. What has to wait is noted.
func (g *gate) free() (free int, enough bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	limit := g.pace.Limit(g.now())
	free = max(limit-g.underway, 0)
	enough = free > limit/8
	if limit > 0 && !enough {
		g.window.seen.Full = true
	}
	return free, enough
}

// enter begins a write for which there is room.
func (g *gate) enter() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.underway++
}

// leave ends a write that was let in. Trouble is reacted to at once, or a window's worth of writes would run into it.
func (g *gate) leave(v verdict, took, pause time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.underway--
	stale := now.Add(-took) < g.slowed
	switch {
	case v == answered:
		g.row = 0
		g.window.seen.Answered++
		g.window.took += took
	case v == throttled && !stale:
		g.row = 0
		g.window.seen.Throttled++
		g.window.seen.Pause = pause
		g.slow(now)
	case v == failed && !stale:
		g.row++
		g.window.seen.Failed++
		if g.row >= g.pace.Limit(now) {
			g.window = window{seen: pace.Observation{Failed: g.row}}
			g.slow(now)
		}
	}
	if now.Sub(g.window.began) >= pace.Window {
		g.learn(now)
	}
	select {
	case g.opened <- struct{}{}:
	default:
	}
}

func (g *gate) slow(now monotonic.Instant) {
	g.learn(now)
	g.slowed, g.row = now, 0
}

// learn ends a window.
func (g *gate) learn(now monotonic.Instant) {
	if seen := &g.window.seen; seen.Answered > 0 {
		seen.Latency = g.window.took / time.Duration(seen.Answered)
	}
	g.pace = g.pace.After(now, g.window.seen)
	g.window = window{began: now}
}

// verdict is what the end of a write says about the kube-apiserver.
type verdict uint8

const (
	answered verdict = iota
	throttled
	failed
	// unheard writes were not sent, or were broken off for reasons of our own.
	unheard
)

func verdictOf(verb leaseobject.Verb, err error) verdict {
	var status apierrors.APIStatus
	var panicked *panicError
	switch {
	case errors.As(err, &panicked):
		return unheard
	case err == nil && verb == leaseobject.None:
		return unheard
	case err == nil:
		return answered
	case apierrors.IsTooManyRequests(err):
		return throttled
	case isState(err):
		return unheard
	case errors.As(err, &status) && status.Status().Code < 500:
		return answered
	case errors.Is(err, context.Canceled):
		return unheard
	}
	return failed
}
