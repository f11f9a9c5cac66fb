package loop

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/backoff"
)

const (
	// restartMin and restartMax bound the backoff after an early return of a loop. It doubles with
	// each return until a pass succeeds.
	restartMin = time.Second
	restartMax = 30 * time.Second
	// restartJitter is the largest random extension of the backoff, as a fraction.
	restartJitter = 0.2
)

// errReturned is the failure of a loop that returned nil before its context ended.
var errReturned = errors.New("returned before it was told to stop")

// supervise keeps one loop running until ctx ends and the loop has returned. While the mode of the
// loop belongs to the other scope, it waits.
func (r *Runner) supervise(ctx context.Context, rec *record, scope Scope) {
	for ctx.Err() == nil {
		s, changed := rec.enter(scope)
		if s != nil {
			r.superviseMode(ctx, rec, s, changed)
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// superviseMode keeps one loop running in one mode until changed is closed or ctx ends, and the
// loop has returned.
func (r *Runner) superviseMode(ctx context.Context, rec *record, s *loopRun, changed <-chan struct{}) {
	var watcher sync.WaitGroup
	defer watcher.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watcher.Go(func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	})
	defer rec.leave(s)
	for ctx.Err() == nil {
		rec.start(s, time.Now())
		err := call(ctx, rec.loop.body(s.dryRun), func(err error) { r.finish(ctx, rec, s, err) })
		r.finish(ctx, rec, s, err)
		if !backoff.Sleep(ctx, restartDelay(rec.end(s))) {
			return
		}
	}
}

// call calls a loop's Run once. The error is never nil, because an early return is a failure.
func call(ctx context.Context, run func(context.Context, Report) error, report Report) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value: value, stack: debug.Stack()}
		}
	}()
	if err := run(ctx, report); err != nil {
		return err
	}
	return errReturned
}

// finish records a finished pass in status, metrics and log. It ignores an error after the end of
// ctx, unless it is a panic.
func (r *Runner) finish(ctx context.Context, rec *record, s *loopRun, err error) {
	if err != nil && ctx.Err() != nil && !isPanic(err) {
		return
	}
	now := time.Now()
	inARow := rec.finish(s, now, err)
	r.metrics.observe(rec.loop.Name, now, err)
	r.log(ctx, rec.loop.Name, inARow, err)
}

// log logs panics, recoveries, and the 1st, 2nd, 4th, 8th … failure in a row, so that an outage
// does not flood the log.
func (r *Runner) log(ctx context.Context, name string, inARow int, err error) {
	var p *panicError
	switch {
	case errors.As(err, &p):
		r.logger.ErrorContext(ctx, "loop panicked; restarting it",
			slog.String("loop", name), slog.Any("panic", p.value), slog.String("stack", string(p.stack)))
	case err != nil && inARow&(inARow-1) == 0:
		r.logger.WarnContext(ctx, "loop pass failed",
			slog.String("loop", name), slog.Int("failures_in_a_row", inARow), slog.Any("error", err))
	case err == nil && inARow > 0:
		r.logger.InfoContext(ctx, "loop recovered",
			slog.String("loop", name), slog.Int("after_failures", inARow))
	}
}

// restartDelay returns the backoff after the given number of early returns in a row.
func restartDelay(ends int) time.Duration {
	return jittered(backoff.Exponential{Min: restartMin, Max: restartMax}.After(ends), restartJitter)
}
