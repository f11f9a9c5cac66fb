package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/internal/devcluster"
)

const (
	// replicas is how many candidates a group has.
	replicas = 3
	// retryTimeout bounds the wait for anything; the slowest takeover of client-go takes less than
	// 24 s.
	retryTimeout = time.Minute
)

// group is candidates for the same shards, and what is known about them. One goroutine uses it.
type group struct {
	seat    seat // of each candidate, but for its id
	events  chan event
	present []*process // in the order of their start
	started int
	ready   map[*process]bool
	holders map[int]*process  // by shard
	vacated map[int]time.Time // when a shard's body ended that no other has followed
	// gaps are the times in which no replica acted for a shard that was handed over.
	gaps      []time.Duration
	lastBegan time.Time
}

// newGroup starts a group and waits until it has settled.
func newGroup(ctx context.Context, cluster *devcluster.Cluster, s seat) (*group, error) {
	s.Endpoints, s.Kubeconfig = cluster.EtcdEndpoints(), cluster.Kubeconfig()
	s.CAFile, s.CertFile, s.KeyFile = cluster.EtcdFiles()
	g := &group{
		seat: s, events: make(chan event, 1024),
		ready: map[*process]bool{}, holders: map[int]*process{}, vacated: map[int]time.Time{},
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
	s := g.seat
	s.ID = fmt.Sprintf("%s-%d", s.Contest, g.started)
	p, err := startProcess(s, g.events)
	if err != nil {
		return fmt.Errorf("start candidate %s: %w", s.ID, err)
	}
	g.present = append(g.present, p)
	return nil
}

// close kills what still runs and returns when it has ended.
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

// learn takes in one event. Its error says that a candidate ended by itself.
func (g *group) learn(e event) error {
	switch e.what {
	case ready:
		g.ready[e.from] = true
	case began:
		if vacated, ok := g.vacated[e.shard]; ok {
			g.gaps = append(g.gaps, e.at.Sub(vacated))
			delete(g.vacated, e.shard)
		}
		g.holders[e.shard], g.lastBegan = e.from, e.at
	case ended:
		if g.holders[e.shard] == e.from {
			delete(g.holders, e.shard)
			g.vacated[e.shard] = e.at
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

// settle returns when every shard is held, all candidates are ready, none is on its way out, and
// nothing has happened for a while.
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
	leaving := slices.ContainsFunc(g.present, func(p *process) bool { return p.dismissed })
	return !leaving && len(g.ready) == len(g.present) && len(g.holders) == g.seat.Shards
}

// succeed ends the holder of a shard and returns the time until another's body for it began.
func (g *group) succeed(ctx context.Context, shard int, end func(*process) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, retryTimeout)
	defer cancel()
	last, start := g.holders[shard], time.Now()
	if err := end(last); err != nil {
		return 0, fmt.Errorf("end candidate %s: %w", last.seat.ID, err)
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
		len(g.ready), len(g.present), g.seat.Contest, len(g.holders), g.seat.Shards, context.Cause(ctx))
}
