package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// stage is a group of tasks that are stopped together, after the stage before it and before the stage after it. Its
// context has no parent on purpose: only stop ends it.
type stage struct {
	name   string
	logger *slog.Logger
	fail   context.CancelCauseFunc // tells the process that a task ended by itself
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

func newStage(name string, logger *slog.Logger, fail context.CancelCauseFunc) *stage {
	ctx, cancel := context.WithCancel(context.Background())
	return &stage{name: name, logger: logger, fail: fail, ctx: ctx, cancel: cancel}
}

func (s *stage) start(task func(context.Context) error) {
	s.tasks.Go(func() {
		err := task(s.ctx)
		switch {
		case s.ctx.Err() == nil:
			s.fail(&failure{stage: s.name, err: err})
		case err != nil && !errors.Is(err, context.Canceled):
			s.logger.Warn("stopped with an error", "part", s.name, "error", err)
		}
	})
}

// stop ends the stage's tasks and waits for them.
func (s *stage) stop() {
	s.cancel()
	s.tasks.Wait()
}

// failure is the end of a task that nobody asked to end.
type failure struct {
	stage string
	err   error // nil if the task just returned
}

func (f *failure) Error() string {
	if f.err == nil {
		return f.stage + ": ended although nobody asked it to"
	}
	return fmt.Sprintf("%s: %v", f.stage, f.err)
}

func (f *failure) Unwrap() error { return f.err }

// failureOf tells a failure from an end that was asked for.
func failureOf(cause error) error {
	var f *failure
	if errors.As(cause, &f) {
		return f
	}
	return nil
}
