package leasesvc

import (
	"context"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// rollCallAge is how old a roll call may be: the shards of a replica begin together, so nearly all of them can share one.
const rollCallAge = checkpointPeriod / 4

// rollCall is who is silent, shard by shard, asked once for all shards that want to know at about the same time.
type rollCall struct {
	mu     sync.Mutex // guards what follows; held while the keeper is asked, so that others wait instead of asking as well
	keeper *sessioncontroller.Controller
	taken  time.Time
	silent map[int][]session.Silence
}

// of returns the silent of a shard; false when it is not kept. Nobody may change what is returned.
func (c *rollCall) of(ctx context.Context, k *sessioncontroller.Controller, shard int) ([]session.Silence, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keeper != k || time.Since(c.taken) > rollCallAge {
		begin := time.Now()
		silent, err := k.Silences(ctx)
		if err != nil {
			return nil, false
		}
		c.keeper, c.taken, c.silent = k, begin, silent
	}
	silences, kept := c.silent[shard]
	return silences, kept
}
