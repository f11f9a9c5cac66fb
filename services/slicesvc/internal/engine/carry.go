package engine

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/apply"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// writesAtOnce is how many slices of one Service are written at the same time. A
// Service with many of them would else wait for each in turn, and whatever changes
// meanwhile for all of them.
const writesAtOnce = 4

// carrying is the plan of one pass while it is carried out.
type carrying struct {
	*Engine
	h   *holding
	key Key

	mu       sync.Mutex      // guards all below; never held across I/O
	how      *outcome        // what came of it
	known    *pack.Placement // what the plan was made from; nil for everything
	failures []error
}

// carryOut makes the writes of a plan: at the same time those that take nothing
// away from where it was to be found elsewhere, then the others, one after the
// other. A write that fails, or that a namespace which goes does not let happen,
// stops no other, except that slices stay whose endpoints were to be found in the
// slice that could not be written, and that a kube-apiserver which asks to be left
// alone is.
func (e *Engine) carryOut(h *holding, key Key, how *outcome, known *pack.Placement) {
	how.reread = true // until something fails that reading does not help with
	c := &carrying{Engine: e, h: h, key: key, how: how, known: known}
	var first, then []pack.Change
	for _, change := range how.plan.Changes {
		if change.Supersedes() {
			then = append(then, change)
		} else {
			first = append(first, change)
		}
	}
	c.together(first)
	for _, change := range then {
		if len(c.failures) > 0 || how.terminating || c.over() {
			break
		}
		c.carry(change)
	}
	how.err = errors.Join(c.failures...)
	if h.ctx.Err() != nil && len(how.plan.Changes) > 0 {
		how.err = h.ctx.Err()
	}
}

// together carries out changes that do not depend on each other.
func (c *carrying) together(changes []pack.Change) {
	if len(changes) == 1 {
		c.carry(changes[0])
		return
	}
	var writers sync.WaitGroup
	next := make(chan pack.Change)
	for range min(len(changes), writesAtOnce) {
		writers.Go(func() {
			for change := range next {
				if !c.over() {
					c.survive(change)
				}
			}
		})
	}
	for _, change := range changes {
		next <- change
	}
	close(next)
	writers.Wait()
}

// survive is carry in a goroutine of its own, where nobody else catches a panic.
func (c *carrying) survive(change pack.Change) {
	defer func() {
		if cause := recover(); cause != nil {
			c.logger.Error("panic while writing a slice", "service", c.key.String(), "cause", cause, "stack", string(debug.Stack()))
			c.fail(fmt.Errorf("panic: %v", cause), false)
		}
	}()
	c.carry(change)
}

// over reports whether no write may begin any more.
func (c *carrying) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.how.rest > 0 || c.h.ctx.Err() != nil
}

// carry carries out one change.
func (c *carrying) carry(change pack.Change) {
	stored, err := c.write(c.h, c.key, change)
	if err == nil {
		err = c.note(change, stored)
	}
	switch {
	case err == nil:
		return
	case c.h.ctx.Err() != nil:
		return // which is said of the whole pass
	case errors.Is(err, apply.ErrNamespaceTerminating):
		c.logger.Debug("slice not created", "service", c.key.String(), "error", err)
		c.terminating()
	case errors.Is(err, apply.ErrConflict):
		c.conflict(err, c.reread(c.h, change))
	default:
		c.fail(err, false)
	}
}

// note takes down what a write has left.
func (c *carrying) note(change pack.Change, stored *discoveryv1.EndpointSlice) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.how.written = append(c.how.written, change)
	switch change.Verb {
	case pack.Create:
		c.how.last.Creates++
	case pack.Update:
		c.how.last.Updates++
	case pack.Delete:
		c.how.last.Deletes++
	}
	switch {
	case c.known == nil:
	case change.Verb == pack.Delete:
		c.known.Deleted(change.Slice.Name)
	case !c.known.Wrote(stored):
		return fmt.Errorf("%s endpointslice %s/%s: what was stored is not what was written", change.Verb, stored.Namespace, stored.Name)
	}
	return nil
}

func (c *carrying) terminating() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.how.terminating = true
}

func (c *carrying) conflict(err error, reread bool) {
	c.fail(err, reread)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.how.conflict = true
}

// fail takes down that a write has failed; helped says that what it failed for is
// known by now.
func (c *carrying) fail(err error, helped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, err)
	c.how.reread = c.how.reread && helped
	c.how.rest = max(c.how.rest, restAfter(err))
}

// restAfter is how long the kube-apiserver asks to be left alone after a write, 0
// if it does not. More than longestRest is not granted: who asks for it may be wrong.
func restAfter(err error) time.Duration {
	pause, asked := apply.RetryAfter(err)
	if !asked {
		return 0
	}
	return min(max(pause, firstRetry), longestRest)
}

// write makes one write and brings what it left into the cache.
func (e *Engine) write(h *holding, key Key, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	name := change.Slice.Name
	start := time.Now()
	h.writes(key, name)
	returned := false
	defer func() {
		if !returned { // but panicked
			h.failed(key, name, true)
		}
	}()
	stored, err := e.deps.Writer.Write(h.ctx, change)
	returned = true
	now := time.Now()
	if e.deps.Pace != nil {
		e.deps.Pace.Wrote(now, now.Sub(start), err)
	}
	if err != nil {
		h.failed(key, name, !apply.Refused(err))
		return nil, err
	}
	e.metrics.change(change.Verb)
	if change.Verb == pack.Delete {
		e.cache.bury(change.Slice)
	} else {
		e.cache.keep(stored)
	}
	e.overtaken(h, key, stored, h.wrote(key, change.Verb, stored, now))
	return stored, nil
}
