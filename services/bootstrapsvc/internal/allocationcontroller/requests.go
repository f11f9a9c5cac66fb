package allocationcontroller

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// otherRepairDelay is how long a caller that wants to apply a plan waits for an unfinished repair
// of the same findings.
const otherRepairDelay = time.Second

// errAborted is the error of a request that the controller did not answer before it stopped.
var errAborted = errors.New("the pass ended without a result")

// request is a function that the goroutine of Run calls between passes.
type request struct {
	do func(ctx context.Context, r *reconciler) error
	// reply holds one error, so that the goroutine never waits for the caller. It is closed after
	// do.
	reply chan error
}

// do makes the goroutine of Run call a function, and returns its error. It returns early if ctx
// ends; the function then still runs.
func (c *Controller) do(ctx context.Context, do func(ctx context.Context, r *reconciler) error) error {
	asked := request{do: do, reply: make(chan error, 1)}
	select {
	case c.requests <- asked:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err, ok := <-asked.reply:
		if !ok {
			return errAborted
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ask is do for a function with a result.
func ask[T any](ctx context.Context, c *Controller, do func(ctx context.Context, r *reconciler) (T, error)) (T, error) {
	replied := make(chan T, 1) // a channel: the function may still run after c.do has returned
	err := c.do(ctx, func(ctx context.Context, r *reconciler) error {
		result, err := do(ctx, r)
		replied <- result
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return <-replied, nil
}

func reply(ctx context.Context, r *reconciler, asked request) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	defer close(asked.reply) // after a panic, too, so that the caller does not wait forever
	asked.reply <- asked.do(ctx, r)
}

// awaitRepair waits for the result of a repair.
func awaitRepair(ctx context.Context, result <-chan repairResult) (repairstore.Repair, error) {
	select {
	case got := <-result:
		return got.repair, got.err
	case <-ctx.Done():
		return repairstore.Repair{}, context.Cause(ctx)
	}
}

// cancelRequests are the repairs that callers want to cancel. The goroutine of Run starts no step
// of such a repair, so that it soon takes the request.
type cancelRequests struct {
	mu      sync.Mutex // guards waiting
	waiting map[string]int
}

func (c *cancelRequests) begin(id string) (end func()) {
	c.add(id, 1)
	return func() { c.add(id, -1) }
}

func (c *cancelRequests) add(id string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		c.waiting = map[string]int{}
	}
	if c.waiting[id] += n; c.waiting[id] == 0 {
		delete(c.waiting, id)
	}
}

func (c *cancelRequests) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting[id] > 0
}
