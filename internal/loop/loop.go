package loop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// everyJitter is the largest delay of a pass as a fraction of its period, so that replicas do not
// send requests at the same time.
const everyJitter = 0.04

// Scope is when a loop runs.
type Scope int

const (
	// Always loops run on every replica, from the start of the process.
	Always Scope = iota
	// Leader loops run only under a held term.
	Leader
)

// Report reports a finished pass to the runner; nil means success. It is safe for concurrent use
// and never blocks.
type Report func(err error)

// Loop is work that runs until its context ends. Name, Doc and Run are required.
type Loop struct {
	// Name is the name in --loops, metrics and status: lower-case words joined by hyphens. It must
	// not change, because manifests contain it.
	Name string
	// Doc describes the loop in one sentence.
	Doc string
	// Scope is when the loop runs.
	Scope Scope
	// OffByDefault keeps the loop out of "*"; it runs only when named.
	OffByDefault bool
	// Stall is the time without a finished pass after which a running loop counts as stalled; 0
	// means never. A loop that waits for an event reports from time to time, so that it can have
	// one.
	Stall time.Duration
	// Shadow does in place of Run what a dry run does: it plans, compares and writes nothing. Nil
	// for a loop that has no counterpart to compare with.
	Shadow func(ctx context.Context, report Report) error
	// ShadowScope is when Shadow runs.
	ShadowScope Scope
	// Run does the work until ctx ends and calls report after each finished pass. It returns after
	// its goroutines have. An earlier return, with or without an error, is a failed pass, and the
	// runner restarts the loop after a backoff.
	Run func(ctx context.Context, report Report) error
}

// scope returns when the loop runs in a mode.
func (l *Loop) scope(dryRun bool) Scope {
	if dryRun {
		return l.ShadowScope
	}
	return l.Scope
}

// body returns what the loop runs in a mode.
func (l *Loop) body(dryRun bool) func(context.Context, Report) error {
	if dryRun {
		return l.Shadow
	}
	return l.Run
}

// Every returns a Loop.Run that calls pass periodically: at once, then one period plus up to 4 %
// after the previous start. After a pass that takes longer than the period, the next one starts at
// once. Passes do not overlap.
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
			// If both channels are ready, the ended context has priority.
			if ctx.Err() != nil {
				return nil
			}
		}
	}
}

// jittered adds a random part of d, less than fraction.
func jittered(d time.Duration, fraction float64) time.Duration {
	return d + time.Duration(rand.Float64()*fraction*float64(d))
}

// everything is the entry that enables all loops that are on by default.
const everything = "*"

// Selection selects the enabled loops. The zero value enables the loops that are on by default.
type Selection struct {
	entries []string
}

// ParseDryRun checks the values of --dry-run against --loops and returns them ordered, each once.
// capable are the loops with a dry run. A loop in dry run is enabled, so that one which is off by
// default needs no other flag; to disable it in spec is a contradiction.
func ParseDryRun(capable, dryRun, spec []string) ([]string, error) {
	var problems []string
	for _, name := range dryRun {
		switch {
		case !slices.Contains(capable, name):
			problems = append(problems, fmt.Sprintf("%q has no dry run", name))
		case slices.Contains(spec, "-"+name):
			problems = append(problems, fmt.Sprintf("%q is disabled by --loops", name))
		}
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("--dry-run: %s; loops with a dry run: %s",
			strings.Join(problems, ", "), strings.Join(slices.Sorted(slices.Values(capable)), ", "))
	}
	return slices.Compact(slices.Sorted(slices.Values(dryRun))), nil
}

// ParseSelection parses spec, the values of --loops: "name" enables a loop, "-name" disables it,
// and "*" enables the loops that are on by default. An empty spec means "*". An unknown name is an
// error, which lists all unknown entries and all names.
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

// Enabled reports whether the loop with that name runs. As in kube-controller-manager's
// --controllers, the first entry with the name decides. Without such an entry, "*" enables the loop
// unless it is off by default.
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
