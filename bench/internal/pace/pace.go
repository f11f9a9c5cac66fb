// Package pace makes changes at a constant rate and measures how long each one takes.
package pace

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Steady is a number of changes at a rate per second.
type Steady struct{ Count, Rate int }

// Latencies are sorted.
type Latencies []time.Duration

// At returns the smallest latency that at least a share q of all latencies does not exceed, or zero
// without latencies.
func (l Latencies) At(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	return l[min(max(int(q*float64(len(l))+0.999999)-1, 0), len(l)-1)]
}

// Run calls change for 0 to Count-1, concurrently, each when it is due, and waits for all of them.
// change returns its latency. Late changes are made up for. rate is the achieved number of changes
// per second.
func (s Steady) Run(ctx context.Context, change func(context.Context, int) (time.Duration, error)) (latencies Latencies, rate float64, err error) {
	latencies = make(Latencies, s.Count)
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for n := range s.Count {
		due := began.Add(time.Duration(n) * time.Second / time.Duration(s.Rate))
		select {
		case <-ctx.Done():
			return nil, 0, errors.Join(group.Wait(), ctx.Err()) // the cause first
		case <-time.After(time.Until(due)):
		}
		group.Go(func() (err error) {
			latencies[n], err = change(ctx, n)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	slices.Sort(latencies)
	return latencies, float64(s.Count) / time.Since(began).Seconds(), nil
}
