package loop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
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

// everything is the entry that enables all loops that are on by default.
const everything = "*"

// Selection says which loops are enabled. The zero value enables those that
// are on by default.
type Selection struct {
	entries []string
}

// ParseSelection reads spec, the values of --loops, where "name" enables a
// loop, "-name" disables it, and "*" enables every loop that is on by
// default. An empty spec means "*". An entry that fits none of names is
// refused; the error names all such entries and all names.
func ParseSelection(names []string, spec []string) (Selection, error) {
	var unknown []string
	for _, entry := range spec {
		name := strings.TrimPrefix(entry, "-")
		if entry != everything && !slices.Contains(names, name) {
			unknown = append(unknown, fmt.Sprintf("%q", entry))
		}
	}
	if len(unknown) > 0 {
		known := slices.Sorted(slices.Values(names))
		return Selection{}, fmt.Errorf("--loops: no such loop: %s; known are %s",
			strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return Selection{entries: slices.Clone(spec)}, nil
}

// Enabled reports whether the loop called name runs. As with
// kube-controller-manager's --controllers, the first entry that names the
// loop decides; without one, "*" enables it unless it is off by default; and
// without "*" it stays off.
func (s Selection) Enabled(name string, offByDefault bool) bool {
	star := len(s.entries) == 0
	for _, entry := range s.entries {
		switch entry {
		case name:
			return true
		case "-" + name:
			return false
		case everything:
			star = true
		}
	}
	return star && !offByDefault
}
