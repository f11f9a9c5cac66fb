package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// simulatedNode is a Node that gives signs of life until it is silenced.
type simulatedNode struct {
	name string
	pace time.Duration
	// beat gives one sign of life and returns when it is acknowledged.
	beat func(context.Context) error

	end  context.CancelFunc
	gone chan struct{}
	// What follows may be read once gone is closed.
	last time.Time // when the last acknowledged sign was sent
	err  error
}

// live starts the signs of life, at a random moment of the pace.
func (p *simulatedNode) start(ctx context.Context) {
	ctx, p.end = context.WithCancel(ctx)
	p.gone = make(chan struct{})
	go func() {
		defer close(p.gone)
		for next := time.Now().Add(rand.N(p.pace)); ; next = next.Add(p.pace) {
			if pause(ctx, time.Until(next)); ctx.Err() != nil {
				return
			}
			sent := time.Now()
			// A sign that is under way when its end comes still counts.
			if p.err = p.beat(context.WithoutCancel(ctx)); p.err != nil {
				return
			}
			p.last = sent
		}
	}()
}

// silence ends the signs of life and returns when the last was sent.
func (p *simulatedNode) silence() (time.Time, error) {
	p.end()
	<-p.gone
	if p.err != nil {
		return time.Time{}, fmt.Errorf("node %s: %w", p.name, p.err)
	}
	return p.last, nil
}

// stopAll ends all signs of life. It returns the error of a simulatedNode that failed.
func stopAll(nodes []*simulatedNode) error {
	var problem error
	for _, p := range nodes {
		if _, err := p.silence(); err != nil {
			problem = err
		}
	}
	return problem
}

// silencing is how many nodes fall silent, and how soon after one another.
type silencing struct {
	count int
	apart time.Duration
}

// observe silences some nodes one after the other and returns how long after their last sign each
// was declared, sorted.
func (v *verdicts) observe(ctx context.Context, nodes []*simulatedNode, s silencing) ([]time.Duration, error) {
	var (
		mu    sync.Mutex // guards times
		times []time.Duration
	)
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range nodes[:s.count] {
		group.Go(func() error {
			last, err := p.silence()
			if err != nil {
				return err
			}
			for end := time.Now().Add(2 * retryTimeout); v.when(p.name).IsZero(); {
				if !sleepUntil(ctx, time.Now().Add(shortPause), end) {
					return fmt.Errorf("node %s is silent since %v and not declared", p.name, time.Since(last))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, v.when(p.name).Sub(last))
			return nil
		})
		pause(ctx, s.apart)
	}
	err := group.Wait()
	slices.Sort(times)
	return times, err
}

// wronglyMarked are the nodes that were marked Unknown although they gave signs of life.
func (v *verdicts) wronglyMarked(nodes []*simulatedNode, s silencing) int {
	wrong := 0
	for _, p := range nodes[s.count:] {
		if !v.when(p.name).IsZero() {
			wrong++
		}
	}
	return wrong
}
