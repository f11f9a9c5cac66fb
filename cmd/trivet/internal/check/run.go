package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/cli/exit"
)

// task reads the facts of a check and decides. Its error means that there is no answer.
type task func(ctx context.Context) (diagnosis.Result, error)

// finished is a check with its result.
type finished struct {
	check  diagnosis.Check
	result diagnosis.Result
}

// runRound runs all checks at once, each for timeout at most, and returns their results in order. A
// task that ignores its context ends later, and its result is dropped. left is called, by one
// goroutine, with the IDs of the checks that still run.
func runRound(ctx context.Context, checks []diagnosis.Check, tasks map[string]task, timeout time.Duration, left func(ids []string)) []finished {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type answer struct {
		at     int
		result diagnosis.Result
	}
	answers := make(chan answer, len(checks)) // every task can send and end
	for i, check := range checks {
		go func() { answers <- answer{i, runTask(ctx, tasks[check.ID])} }()
	}
	results := make([]finished, len(checks))
	for i, check := range checks {
		results[i] = finished{check, diagnosis.Undetermined("no answer within %s", timeout)}
	}
	running := make(map[int]bool, len(checks))
	for i := range checks {
		running[i] = true
	}
	for len(running) > 0 {
		select {
		case a := <-answers:
			delete(running, a.at)
			results[a.at].result = a.result
			left(idsOf(checks, running))
		case <-ctx.Done():
			// Tasks that keep to their context have an answer of their own at this moment.
			grace := time.NewTimer(graceTime)
			defer grace.Stop()
			for len(running) > 0 {
				select {
				case a := <-answers:
					delete(running, a.at)
					results[a.at].result = a.result
				case <-grace.C:
					return results
				}
			}
		}
	}
	return results
}

// graceTime is how long tasks may take to notice that their time is over.
const graceTime = 200 * time.Millisecond

func runTask(ctx context.Context, t task) diagnosis.Result {
	result, err := t(ctx)
	if err == nil {
		return result
	}
	undetermined := diagnosis.Undetermined("%s", strings.ReplaceAll(exit.Message(err), "\n", "; "))
	if cause, ok := errors.AsType[*exit.Error](err); ok {
		undetermined.Hint = cause.Try
	}
	return undetermined
}

func idsOf(checks []diagnosis.Check, running map[int]bool) []string {
	var ids []string
	for i, check := range checks {
		if running[i] {
			ids = append(ids, check.ID)
		}
	}
	return ids
}

func summarize(results []finished) diagnosis.Outcome {
	plain := make([]diagnosis.Result, len(results))
	for i, r := range results {
		plain[i] = r.result
	}
	return diagnosis.Summarize(plain)
}

// shared is a fact that several checks use. It is read once in a round, by the first of them.
type shared[T any] struct {
	read func(ctx context.Context) (T, error)

	once  sync.Once
	done  chan struct{}
	value T
	err   error
}

func newShared[T any](read func(ctx context.Context) (T, error)) *shared[T] {
	return &shared[T]{read: read, done: make(chan struct{})}
}

// get returns the fact, or an error if there is none when the context ends.
func (s *shared[T]) get(ctx context.Context) (T, error) {
	s.once.Do(func() {
		go func() {
			defer close(s.done)
			s.value, s.err = s.read(ctx) // all contexts of a round end at the same time
		}()
	})
	select {
	case <-s.done:
		return s.value, s.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
}
