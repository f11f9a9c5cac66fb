package allocationcontroller

import (
	"context"
	"fmt"
	"sync"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

// serviceLists lists all Services for several workers at once. Each call of read gets a list that
// began after the call; the calls that come while a list is under way share the next one.
type serviceLists struct {
	list func(context.Context) ([]allocation.Service, error)
	// ctx bounds the lists: a caller that leaves must not end the list of another. spawn runs a
	// function in a goroutine.
	ctx   context.Context
	spawn func(func())

	mu      sync.Mutex // guards the fields below
	current *sharedList
	next    *sharedList
}

// sharedList is one list. usage and err are set when done is closed.
type sharedList struct {
	done  chan struct{}
	usage *allocation.Usage
	err   error
}

// read returns what all Services use, by a list that began after the call.
func (l *serviceLists) read(ctx context.Context) (*allocation.Usage, error) {
	list := l.join()
	select {
	case <-list.done:
		return list.usage, list.err
	case <-ctx.Done():
		return nil, fmt.Errorf("list services: %w: %w", guarded.ErrUnavailable, context.Cause(ctx))
	}
}

func (l *serviceLists) join() *sharedList {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = &sharedList{done: make(chan struct{})}
	}
	joined := l.next
	l.begin()
	return joined
}

// begin begins the next list unless one is under way. The caller holds the lock.
func (l *serviceLists) begin() {
	if l.current != nil || l.next == nil {
		return
	}
	l.current, l.next = l.next, nil
	list := l.current
	l.spawn(func() { l.run(list) })
}

func (l *serviceLists) run(list *sharedList) {
	ctx, cancel := context.WithTimeout(l.ctx, workTimeout)
	defer cancel()
	services, err := l.list(ctx)
	if list.err = err; err == nil {
		list.usage = allocation.CountUsage(services)
	}
	close(list.done)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = nil
	l.begin()
}
