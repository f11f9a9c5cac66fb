package admission

import (
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Gate is a bucket of tokens. It begins full.
type Gate struct {
	rate, burst float64

	mu     sync.Mutex // guards what follows
	tokens float64
	filled monotonic.Instant // when tokens was true
	turn   monotonic.Instant // when the last of those who wait may come
}

// NewGate lets rate in per second, and as many at once.
func NewGate(rate int) *Gate {
	return &Gate{rate: float64(rate), burst: float64(rate), tokens: float64(rate)}
}

// Admit tells how many of n may come in now.
func (g *Gate) Admit(now monotonic.Instant, n int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if passed := now.Sub(g.filled); passed > 0 {
		g.tokens = min(g.burst, g.tokens+passed.Seconds()*g.rate)
		g.filled = now
	}
	admitted := min(n, int(g.tokens))
	g.tokens -= float64(admitted)
	return admitted
}

// Wait tells one who may not come in how long to stay away: each gets a turn of his own, behind the others'.
func (g *Gate) Wait(now monotonic.Instant) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turn = max(g.turn, now).Add(time.Duration(float64(time.Second) / g.rate))
	return g.turn.Sub(now)
}
