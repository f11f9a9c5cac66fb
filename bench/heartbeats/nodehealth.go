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

// simulatedNode is a Node that sends beats until it is silenced.
type simulatedNode struct {
	name string
	pace time.Duration
	// beat sends one beat and returns after its acknowledgement.
	beat func(context.Context) error

	end  context.CancelFunc
	gone chan struct{}
	// last and err may be read once gone is closed.
	last time.Time // the time at which the last acknowledged beat was sent
	err  error
}

// start starts the beats at a random phase of the interval.
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
			// A pending beat at the end still counts.
			if p.err = p.beat(context.WithoutCancel(ctx)); p.err != nil {
				return
			}
			p.last = sent
		}
	}()
}

// silence stops the beats and returns the time of the last one.
func (p *simulatedNode) silence() (time.Time, error) {
	p.end()
	<-p.gone
	if p.err != nil {
		return time.Time{}, fmt.Errorf("node %s: %w", p.name, p.err)
	}
	return p.last, nil
}

// stopAll stops the beats of all nodes. It returns the error of a failed simulatedNode.
func stopAll(nodes []*simulatedNode) error {
	var problem error
	for _, p := range nodes {
		if _, err := p.silence(); err != nil {
			problem = err
		}
	}
	return problem
}

// silencing is the number of nodes to silence, and the interval between them.
type silencing struct {
	count int
	apart time.Duration
}

// observe silences nodes in turn, and returns the sorted times from the last beat of each until it
// was marked Unknown.
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
					return fmt.Errorf("node %s is silent since %v and not marked Unknown", p.name, time.Since(last))
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

// wronglyMarked returns the number of nodes that were marked Unknown although they sent beats.
func (v *verdicts) wronglyMarked(nodes []*simulatedNode, s silencing) int {
	wrong := 0
	for _, p := range nodes[s.count:] {
		if !v.when(p.name).IsZero() {
			wrong++
		}
	}
	return wrong
}
