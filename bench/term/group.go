package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

const (
	// replicas is the number of candidates in a group.
	replicas = 3
	// retryTimeout bounds each wait. The slowest takeover of client-go takes less than 24 s.
	retryTimeout = time.Minute
)

// group is a set of candidates for the same shards. It is not safe for concurrent use.
type group struct {
	template candidateConfig // of each candidate, without its ID
	events   chan event
	present  []*process // in the order of their start
	started  int
	ready    map[*process]bool
	holders  map[int]*process  // by shard
	endedAt  map[int]time.Time // the end of the last body of each shard without a holder
	// gaps are the times without a holder during a handover of a shard.
	gaps      []time.Duration
	lastBegan time.Time
}

// newGroup starts a group and waits until it has settled.
func newGroup(ctx context.Context, cluster *devcluster.Cluster, c candidateConfig) (*group, error) {
	c.Endpoints, c.Kubeconfig = cluster.EtcdEndpoints(), cluster.Kubeconfig()
	c.CAFile, c.CertFile, c.KeyFile = cluster.EtcdFiles()
	g := &group{
		template: c, events: make(chan event, 1024),
		ready: map[*process]bool{}, holders: map[int]*process{}, endedAt: map[int]time.Time{},
	}
	for range replicas {
		if err := g.add(); err != nil {
			return nil, errors.Join(err, g.close())
		}
	}
	if err := g.settle(ctx, time.Second); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

// add starts another candidate.
func (g *group) add() error {
	g.started++
	c := g.template
	c.ID = fmt.Sprintf("%s-%d", c.Group, g.started)
	p, err := startProcess(c, g.events)
	if err != nil {
		return fmt.Errorf("start candidate %s: %w", c.ID, err)
	}
	g.present = append(g.present, p)
	return nil
}

// close kills all candidates and returns after their exit.
func (g *group) close() error {
	var problems []error
	for _, p := range g.present {
		if err := p.kill(); !errors.Is(err, os.ErrProcessDone) {
			problems = append(problems, err)
		}
	}
	for len(g.present) > 0 {
		problems = append(problems, g.learn(<-g.events))
	}
	return errors.Join(problems...)
}

// learn processes one event. It returns an error if a candidate has exited unexpectedly.
func (g *group) learn(e event) error {
	switch e.what {
	case ready:
		g.ready[e.from] = true
	case began:
		if endedAt, ok := g.endedAt[e.shard]; ok {
			g.gaps = append(g.gaps, e.at.Sub(endedAt))
			delete(g.endedAt, e.shard)
		}
		g.holders[e.shard], g.lastBegan = e.from, e.at
	case ended:
		if g.holders[e.shard] == e.from {
			delete(g.holders, e.shard)
			g.endedAt[e.shard] = e.at
		}
	case left:
		return g.forget(e.from)
	}
	return nil
}

func (g *group) forget(p *process) error {
	g.present = slices.DeleteFunc(g.present, func(other *process) bool { return other == p })
	delete(g.ready, p)
	maps.DeleteFunc(g.holders, func(_ int, holder *process) bool { return holder == p })
	return p.failure()
}

// settle returns when every shard is held, all candidates are ready, none is about to exit, and no
// event has occurred for a while.
func (g *group) settle(ctx context.Context, quiet time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, retryTimeout+quiet)
	defer cancel()
	for {
		var silence <-chan time.Time
		if g.complete() {
			silence = time.After(quiet)
		}
		select {
		case <-silence:
			return nil
		case e := <-g.events:
			if err := g.learn(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return g.impatient(ctx)
		}
	}
}

func (g *group) complete() bool {
	leaving := slices.ContainsFunc(g.present, func(p *process) bool { return p.exitRequested })
	return !leaving && len(g.ready) == len(g.present) && len(g.holders) == g.template.Shards
}

// endHolder ends the holder of a shard and returns the time until the next holder's body began.
func (g *group) endHolder(ctx context.Context, shard int, end func(*process) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, retryTimeout)
	defer cancel()
	last, start := g.holders[shard], time.Now()
	if err := end(last); err != nil {
		return 0, fmt.Errorf("end candidate %s: %w", last.config.ID, err)
	}
	for {
		select {
		case e := <-g.events:
			if err := g.learn(e); err != nil {
				return 0, err
			}
			if e.what == began && e.shard == shard && e.from != last {
				return e.at.Sub(start), nil
			}
		case <-ctx.Done():
			return 0, g.impatient(ctx)
		}
	}
}

func (g *group) impatient(ctx context.Context) error {
	return fmt.Errorf("%d of %d candidates of %s are ready and %d of %d shards held: %w",
		len(g.ready), len(g.present), g.template.Group, len(g.holders), g.template.Shards, context.Cause(ctx))
}
