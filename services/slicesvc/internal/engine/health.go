package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// reportHealth reports about once a second until ctx ends.
func (e *Engine) reportHealth(ctx context.Context, work queue, busy *atomic.Int32, report func(error)) {
	ticker := time.NewTicker(healthPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		passes, err := e.ledger.health(e.Counts().Managed)
		idle := work.Len() == 0 && busy.Load() == 0
		// Workers that are all stuck finish nothing; the silence shows as a stall.
		if passes > 0 || idle {
			report(err)
		}
	}
}

// health gives the passes finished since it was last asked, and an error when
// at least half of the managed Services fail: then the fault is not theirs.
func (l *ledger) health(managed int) (passes int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	passes, l.passes = l.passes, 0
	if l.failing > 0 && 2*l.failing >= managed {
		err = fmt.Errorf("%d of %d services fail, %s with: %w", l.failing, managed, l.lastFailure.key, l.lastFailure.err)
	}
	return passes, err
}
