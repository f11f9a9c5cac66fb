package allocationcontroller

import (
	"context"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/internal/backoff"
)

const (
	// storeTimeout bounds the writes to the store of one call.
	storeTimeout = 10 * time.Second
	// storeBackoffMin and storeBackoffMax bound the pause after a write to the store that failed.
	storeBackoffMin, storeBackoffMax = time.Second, 5 * time.Second
)

// journal delays writes to the store after one that failed.
type journal struct {
	// notBefore is when the next write may be tried, zero if the last one succeeded.
	notBefore time.Time
	failures  int
	err       error
}

// do calls write, unless the pause after a failed call is not over. Then it returns the error of
// that call.
func (j *journal) do(ctx context.Context, now time.Time, write func(context.Context) error) error {
	if now.Before(j.notBefore) {
		return j.err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := write(ctx); err != nil {
		j.err = fmt.Errorf("store findings and repairs: %w", err)
		j.notBefore = time.Now().Add(backoff.Exponential{Min: storeBackoffMin, Max: storeBackoffMax}.After(j.failures + 1))
		j.failures++
		return j.err
	}
	*j = journal{}
	return nil
}
