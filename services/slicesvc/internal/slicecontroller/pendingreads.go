package slicecontroller

import (
	"context"
	"sync"
)

// leftovers are slices of which a watch showed a version while a write of ours was
// under way, whose answer was to tell what that is, and whose term ended before it
// came. The watch does not show them again, and none but the next term of their
// shard here would read them: until then this replica would answer with what was.
type leftovers struct {
	mu     sync.Mutex // guards slices
	slices map[Key]struct{}
	some   chan struct{} // has something when slices may have
}

func newLeftovers() *leftovers {
	return &leftovers{slices: map[Key]struct{}{}, some: make(chan struct{}, 1)}
}

func (l *leftovers) add(slices []Key) {
	if len(slices) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, slice := range slices {
		l.slices[slice] = struct{}{}
	}
	select {
	case l.some <- struct{}{}:
	default:
	}
}

func (l *leftovers) take() map[Key]struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.slices
	l.slices = map[Key]struct{}{}
	return taken
}

// readLeftovers reads what terms leave over until ctx ends. It takes no term to read.
func (e *Engine) readLeftovers(ctx context.Context) {
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-e.leftovers.some:
		}
		var still []Key
		for slice := range e.leftovers.take() {
			if err := e.fetch(ctx, slice, nil); err != nil {
				e.logger.Debug("slice not read after the end of a term, will be", "slice", slice.String(), "error", err)
				still = append(still, slice)
			}
		}
		if len(still) == 0 {
			failures = 0
			continue
		}
		failures++
		pause(ctx, retryPause(failures))
		e.leftovers.add(still)
	}
}
