// Package faultcontroller runs the faults of a demo: one goroutine owns them, starts the actions
// that package fault names, and restores everything at its end. Its HTTP handler serves `trivet
// break` and the buttons of the page.
package faultcontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/fault"
)

const (
	// actionTimeout limits one action: a kube-apiserver may need a minute to start.
	actionTimeout = 2 * time.Minute
	// releaseTimeout limits what the end of the demo waits for.
	releaseTimeout = 15 * time.Second
)

// Actions break and restore targets. The methods are called concurrently, for one fault one at a
// time.
type Actions interface {
	// Break breaks a target. After an error it may be broken in part.
	Break(ctx context.Context, f fault.Fault) (fault.Effect, error)
	// Restore undoes Break, also one that has failed or was done in part. It may be called again.
	Restore(ctx context.Context, f fault.Fault) error
	// Release undoes what outlives the processes of the demo, and resumes frozen ones.
	Release(ctx context.Context, f fault.Fault) error
	// SetSilentNodes says which Nodes are to send nothing. It does not block.
	SetSilentNodes(silent map[string]bool)
}

// Controller owns the faults of a demo.
type Controller struct {
	actions Actions
	logger  *slog.Logger
	calls   chan func(*state)
	results chan result
	ended   chan struct{} // closed when Run returns
}

type result struct {
	action fault.Action
	effect fault.Effect
	err    error
}

// state belongs to the goroutine of Run.
type state struct {
	set     *fault.Set
	running int // actions in progress
	waiters []waiter
}

// waiter is a call that waits for the set. isDone is asked after each change and sends the answer.
type waiter struct{ isDone func(*fault.Set) bool }

// New returns a controller of the targets in the set. It starts nothing.
func New(actions Actions, logger *slog.Logger) *Controller {
	return &Controller{
		actions: actions, logger: logger,
		calls: make(chan func(*state)), results: make(chan result), ended: make(chan struct{}),
	}
}

// Run owns the set until ctx ends. Then it waits for actions in progress, whose context ends too,
// and releases every target that is still broken.
func (c *Controller) Run(ctx context.Context, set *fault.Set) error {
	defer close(c.ended)
	s := &state{set: set}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		for _, action := range s.set.Start(time.Now()) {
			s.running++
			go func() { c.results <- c.act(ctx, action) }()
		}
		c.actions.SetSilentNodes(s.set.SilentNodes())
		if next := s.set.Next(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case call := <-c.calls:
			call(s)
		case r := <-c.results:
			c.finish(s, r)
		case <-timer.C:
		case <-ctx.Done():
			return c.release(ctx, s)
		}
		s.notify()
	}
}

func (c *Controller) act(ctx context.Context, action fault.Action) result {
	ctx, cancel := context.WithTimeout(ctx, actionTimeout)
	defer cancel()
	r := result{action: action}
	if action.Restore {
		r.err = c.actions.Restore(ctx, action.Fault)
	} else {
		r.effect, r.err = c.actions.Break(ctx, action.Fault)
	}
	return r
}

func (c *Controller) finish(s *state, r result) {
	s.running--
	verb := "broke"
	if r.action.Restore {
		verb = "restored"
	}
	if r.err != nil {
		c.logger.Warn("an action of the demo failed", "target", r.action.Fault.String(), "restore", r.action.Restore, "error", r.err)
	} else {
		c.logger.Info("an action of the demo ended", "target", r.action.Fault.String(), "action", verb)
	}
	s.set.Done(r.action, r.effect, r.err, time.Now())
}

func (s *state) notify() {
	kept := s.waiters[:0]
	for _, w := range s.waiters {
		if !w.isDone(s.set) {
			kept = append(kept, w)
		}
	}
	s.waiters = kept
}

// release releases all targets at the same time, so that one that hangs does not delay the others.
func (c *Controller) release(ctx context.Context, s *state) error {
	for ; s.running > 0; s.running-- {
		r := <-c.results
		s.set.Done(r.action, r.effect, r.err, time.Now())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	faults := s.set.List()
	errs := make(chan error, len(faults))
	for _, f := range faults {
		go func() {
			err := c.actions.Release(ctx, f)
			if err != nil {
				err = fmt.Errorf("restore %s: %w", f.Target, err)
			}
			errs <- err
		}()
	}
	var all error
	for range faults {
		all = errors.Join(all, <-errs)
	}
	return all
}

// errEnded says that the demo ends.
var errEnded = errors.New("the demo ends")

// do runs call on the goroutine of Run and returns an error if that does not happen.
func (c *Controller) do(ctx context.Context, call func(*state)) error {
	select {
	case c.calls <- call:
		return nil
	case <-c.ended:
		return errEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await returns what a call on the goroutine of Run sends.
func await[T any](ctx context.Context, c *Controller, answers <-chan T) (T, error) {
	var none T
	select {
	case answer := <-answers:
		return answer, nil
	case <-c.ended:
		return none, errEnded
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// List returns the kinds with their targets, and the faults.
func (c *Controller) List(ctx context.Context) ([]fault.KindInfo, []fault.Fault, error) {
	type answer struct {
		kinds  []fault.KindInfo
		faults []fault.Fault
	}
	answers := make(chan answer, 1)
	if err := c.do(ctx, func(s *state) { answers <- answer{s.set.Kinds(), s.set.List()} }); err != nil {
		return nil, nil, err
	}
	a, err := await(ctx, c, answers)
	return a.kinds, a.faults, err
}

// RefusedError says that a request cannot be done as it is.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// Break breaks a target and returns when it is broken. The fault lasts also if ctx ends before.
func (c *Controller) Break(ctx context.Context, request fault.Request) (fault.Fault, error) {
	type answer struct {
		fault fault.Fault
		err   error
	}
	answers := make(chan answer, 1)
	call := func(s *state) {
		target, err := s.set.Add(request, time.Now())
		if err != nil {
			answers <- answer{err: &RefusedError{Err: err}}
			return
		}
		s.waiters = append(s.waiters, waiter{isDone: func(set *fault.Set) bool {
			f, exists := set.Find(target)
			if exists && f.Phase == fault.Breaking && f.Failure() == nil {
				return false
			}
			answers <- answer{fault: f, err: f.Failure()}
			return true
		}})
	}
	if err := c.do(ctx, call); err != nil {
		return fault.Fault{}, err
	}
	a, err := await(ctx, c, answers)
	return a.fault, errors.Join(err, a.err)
}

// Restore restores a target, those of a kind, or all, and returns when they are restored. A target
// that cannot be restored is tried again until ctx ends, and after it.
func (c *Controller) Restore(ctx context.Context, target fault.Target) ([]fault.Target, error) {
	type answer struct {
		targets []fault.Target
		err     error
	}
	answers := make(chan answer, 1)
	call := func(s *state) {
		targets, err := s.set.Restore(target)
		if err != nil {
			answers <- answer{err: &RefusedError{Err: err}}
			return
		}
		s.waiters = append(s.waiters, waiter{isDone: func(set *fault.Set) bool {
			for _, target := range targets {
				f, exists := set.Find(target)
				if exists && f.Problem != "" {
					answers <- answer{err: fmt.Errorf("%s is not restored and is tried again: %s", target, f.Problem)}
					return true
				}
				if exists {
					return false
				}
			}
			answers <- answer{targets: targets}
			return true
		}})
	}
	if err := c.do(ctx, call); err != nil {
		return nil, err
	}
	a, err := await(ctx, c, answers)
	return a.targets, errors.Join(err, a.err)
}
