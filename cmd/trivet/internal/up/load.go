package up

import (
	"context"
	"fmt"
	"sync"
)

// tasks are goroutines that end together. A nil *tasks is empty: it never fails and has nothing to stop.
type tasks struct {
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup
	errs   chan error // holds the first unexpected end
}

func newTasks() *tasks {
	ctx, cancel := context.WithCancel(context.Background())
	return &tasks{ctx: ctx, cancel: cancel, errs: make(chan error, 1)}
}

func (t *tasks) start(name string, run func(context.Context) error) {
	t.group.Go(func() {
		err := run(t.ctx)
		if t.ctx.Err() != nil {
			return
		}
		select {
		case t.errs <- fmt.Errorf("%s ended: %w", name, err):
		default:
		}
	})
}

func (t *tasks) failed() <-chan error {
	if t == nil {
		return nil
	}
	return t.errs
}

func (t *tasks) stop() {
	if t == nil {
		return
	}
	t.cancel()
	t.group.Wait()
}
