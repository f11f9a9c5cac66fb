// Package backoff has the pauses between attempts.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Exponential doubles a pause from Min up to Max, which is not below Min. It is a value without
// state.
type Exponential struct{ Min, Max time.Duration }

// After returns the pause after a number of failures in a row: Min after the first one.
func (e Exponential) After(failures int) time.Duration {
	doublings := min(max(failures-1, 0), 62)
	if e.Min > e.Max>>doublings {
		return e.Max
	}
	return e.Min << doublings
}

// Next returns the pause after the last one: Min after none.
func (e Exponential) Next(last time.Duration) time.Duration {
	return min(max(2*last, e.Min), e.Max)
}

// Jitter returns a random duration between half of d and d, so that clients which failed together
// do not return together.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// Sleep waits for d. It returns false if ctx has ended by then.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
