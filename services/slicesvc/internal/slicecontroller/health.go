package slicecontroller

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// reportHealth reports about once a second until ctx ends. Every holding is told
// the same, because a shard alone may have a single Service, which would then
// stand for all.
func (e *Engine) reportHealth(ctx context.Context, busy *atomic.Int32) {
	ticker := time.NewTicker(healthPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		holdings := e.ledger.holdings()
		idle := e.QueueLength() == 0 && busy.Load() == 0
		// Workers that are all stuck finish nothing; the silence shows as a stall.
		if passes := e.ledger.takePasses(); passes == 0 && !idle {
			continue
		}
		err := e.health(holdings)
		for _, h := range holdings {
			h.tell(err)
		}
	}
}

// health gives an error when at least half of the managed Services of the
// shards held fail: then the fault is not theirs.
func (e *Engine) health(holdings []*holding) error {
	var shards []int
	var failing int
	var last Key
	var latest failure
	for _, h := range holdings {
		count, key, how := h.failing()
		shards = append(shards, h.shard)
		failing += count
		if how.at.After(latest.at) {
			last, latest = key, how
		}
	}
	managed := e.Counts(shards).Managed
	if failing == 0 || 2*failing < managed {
		return nil
	}
	return fmt.Errorf("%d of %d services fail, %s with: %w", failing, managed, last, latest.err)
}
