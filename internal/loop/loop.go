package loop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// everyJitter bounds by which part of its period Every delays a pass, so that
// replicas started together drift apart instead of calling in chorus.
const everyJitter = 0.04

// Scope says when a loop runs.
type Scope int

const (
	// Always loops run on every replica, from the start of the process.
	Always Scope = iota
	// Leader loops run only under a held term.
	Leader
)

// Report tells the runner that a pass has finished; nil means success. It is
// safe for concurrent use and never blocks.
type Report func(err error)

// Loop is one piece of work that goes on for as long as its context does.
type Loop struct {
	// Name is what --loops, metrics and status call it: lower-case words
	// joined by hyphens. It is stable, because people write it into manifests.
	Name string
	// Doc says in one sentence what the loop does.
	Doc string
	// Scope says when it runs.
	Scope Scope
	// OffByDefault keeps the loop out of "*"; it runs only when named.
	OffByDefault bool
	// Stall is how long a running loop may go without finishing a pass
	// before it counts as stalled; 0 means it never does.
	Stall time.Duration
	// Run does the work until ctx ends and calls report after every finished
	// pass. It returns only after the goroutines it started have. Returning
	// earlier, with or without an error, counts as a failed pass, and the
	// runner starts it again after a pause.
	Run func(ctx context.Context, report Report) error
}

// Every makes a Loop.Run of a single pass: the first one at once, the next
// one period after the previous one began, plus up to 4 % of it. A pass that takes
// longer than the period is followed by the next at once; they never overlap.
func Every(period time.Duration, pass func(ctx context.Context) error) func(context.Context, Report) error {
	return func(ctx context.Context, report Report) error {
		if period <= 0 {
			return fmt.Errorf("period %s is not positive", period)
		}
		for {
			next := time.NewTimer(jittered(period, everyJitter))
			report(pass(ctx))
			select {
			case <-ctx.Done():
				next.Stop()
				return nil
			case <-next.C:
			}
			// A timer that fired during the pass must not win over an ended context.
			if ctx.Err() != nil {
				return nil
			}
		}
	}
}

// jittered lengthens d by a random share of it below fraction.
func jittered(d time.Duration, fraction float64) time.Duration {
	return d + time.Duration(rand.Float64()*fraction*float64(d))
}
