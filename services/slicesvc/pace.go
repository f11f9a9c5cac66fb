package slicesvc

import (
	"errors"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/apply"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/batch"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/engine"
)

// pace lets the engine's goroutines share one batch.Pace.
type pace struct {
	mu   sync.Mutex // guards pace
	pace *batch.Pace
}

var _ engine.Pace = &pace{}

func newPace(cfg Config) *pace {
	return &pace{pace: batch.New(cfg.UpdatesBatchPeriod, cfg.ConcurrentServiceSyncs)}
}

// Wait returns how much longer a Service rests.
func (p *pace) Wait(now time.Time, due engine.Due) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pace.Wait(now, batch.Change{Since: due.Since, Urgency: due.Urgency, Depth: due.Depth})
}

// Wrote takes note of a write.
func (p *pace) Wrote(now time.Time, took time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace.Wrote(now, took, throttled(err) || errors.Is(err, apply.ErrConflict))
}
