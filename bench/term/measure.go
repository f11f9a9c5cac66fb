package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

const (
	// manyShards is the default number of shards of leasesvc and slicesvc.
	manyShards = 64
	// concurrentGroups is the number of groups that wait concurrently for a killed candidate's
	// lease to expire. They use little CPU meanwhile.
	concurrentGroups = 4
	// renewal is the longest renewal interval of all mechanisms. A kill occurs at a random time
	// within it.
	renewal = 2 * time.Second
)

// result is the measurement of one mechanism.
type result struct {
	// kills and stops are the times from the end of a holder to the start of the next body.
	kills, stops []time.Duration
	// joins and leaves are the times from the start or stop of one of three replicas to the start
	// of the last body that moved. gaps are the times without a holder of those shards.
	joins, leaves, gaps []time.Duration
	rest                map[int]cost // by number of shards
}

// measure measures all times of one mechanism on its own cluster.
func measure(ctx context.Context, cfg config, m mechanism, r *result) (err error) {
	cluster, err := devcluster.Start(ctx, devcluster.Config{EtcdOnly: m != leases})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	kills, stops := cfg.kills, cfg.stops
	if m == leases {
		kills, stops = cfg.slow, cfg.slow
	}
	if r.kills, err = measureKills(ctx, cluster, m, kills); err != nil {
		return fmt.Errorf("kill the holder: %w", err)
	}
	if r.stops, err = measureStops(ctx, cluster, m, stops); err != nil {
		return fmt.Errorf("stop the holder: %w", err)
	}
	if m == terms {
		if err := measureMoves(ctx, cluster, cfg.joins, r); err != nil {
			return fmt.Errorf("move shards: %w", err)
		}
	}
	return nil
}

// withGroup calls use with a settled group and ends the group afterwards.
func withGroup(ctx context.Context, cluster *devcluster.Cluster, c candidateConfig, use func(*group) error) error {
	g, err := newGroup(ctx, cluster, c)
	if err != nil {
		return err
	}
	return errors.Join(use(g), g.close())
}

func measureKills(ctx context.Context, cluster *devcluster.Cluster, m mechanism, trials int) ([]time.Duration, error) {
	var (
		mu    sync.Mutex // guards times
		times []time.Duration
	)
	all, ctx := errgroup.WithContext(ctx)
	for number := range concurrentGroups {
		share := (trials + number) / concurrentGroups
		all.Go(func() error {
			c := candidateConfig{Mechanism: m, Group: fmt.Sprintf("kills-%d", number), Shards: 1}
			return withGroup(ctx, cluster, c, func(g *group) error {
				for range share {
					pause(ctx, rand.N(renewal))
					took, err := g.replace(ctx, (*process).kill, time.Second)
					if err != nil {
						return err
					}
					mu.Lock()
					times = append(times, took)
					mu.Unlock()
				}
				return nil
			})
		})
	}
	return times, all.Wait()
}

func measureStops(ctx context.Context, cluster *devcluster.Cluster, m mechanism, trials int) ([]time.Duration, error) {
	var times []time.Duration
	c := candidateConfig{Mechanism: m, Group: "stops", Shards: 1}
	return times, withGroup(ctx, cluster, c, func(g *group) error {
		for range trials {
			pause(ctx, rand.N(100*time.Millisecond))
			took, err := g.replace(ctx, (*process).stop, 300*time.Millisecond)
			if err != nil {
				return err
			}
			times = append(times, took)
		}
		return nil
	})
}

// replace ends the holder of shard 0, adds another candidate, and returns the time until the next
// body began.
func (g *group) replace(ctx context.Context, end func(*process) error, quiet time.Duration) (time.Duration, error) {
	took, err := g.endHolder(ctx, 0, end)
	if err != nil {
		return 0, err
	}
	if err := g.add(); err != nil {
		return 0, err
	}
	return took, g.settle(ctx, quiet)
}

// measureMoves repeatedly stops one of three replicas and adds another one.
func measureMoves(ctx context.Context, cluster *devcluster.Cluster, trials int, r *result) error {
	c := candidateConfig{Mechanism: terms, Group: "moves", Shards: manyShards}
	return withGroup(ctx, cluster, c, func(g *group) error {
		g.gaps = nil
		for range trials {
			left, err := g.rebalance(ctx, func() error { return g.present[0].stop() })
			if err != nil {
				return fmt.Errorf("leave: %w", err)
			}
			joined, err := g.rebalance(ctx, g.add)
			if err != nil {
				return fmt.Errorf("join: %w", err)
			}
			r.leaves, r.joins = append(r.leaves, left), append(r.joins, joined)
		}
		r.gaps = g.gaps
		return nil
	})
}

// rebalance changes the members and returns the time until the last body began that moved because
// of it.
func (g *group) rebalance(ctx context.Context, change func() error) (time.Duration, error) {
	start := time.Now()
	if err := change(); err != nil {
		return 0, err
	}
	if err := g.settle(ctx, 2*time.Second); err != nil {
		return 0, err
	}
	if !g.lastBegan.After(start) {
		return 0, errors.New("no shard has moved")
	}
	return g.lastBegan.Sub(start), nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
