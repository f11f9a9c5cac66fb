package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/trivet-dev/trivet/bench/internal/pace"
	"github.com/trivet-dev/trivet/bench/internal/podset"
	"github.com/trivet-dev/trivet/bench/internal/selection"
)

// sliceLimit is the number of endpoints per slice of every contender.
const sliceLimit = 100

// world is a number of Services and Pods, with the changes to measure.
type world struct {
	name               string
	services, podsEach int
	flips              pace.Steady
	// coldTarget is the allowed share of upstream's time for a cold start; 0 for no target.
	coldTarget float64
	// massChange is the mass change to measure; nil for none.
	massChange *massChange
}

// massChange is a mass change after which slices are empty or overflow.
type massChange struct {
	what string
	do   func(context.Context, *podset.Set, contender) error
	// writes is the allowed share of upstream's writes. slices is the allowed ratio to the minimal
	// number of slices; 0 allows as many as upstream leaves.
	writes, slices float64
}

func worlds(cfg config) []world {
	flips, services := pace.Steady{Count: 3000, Rate: 100}, 1000
	if cfg.short {
		flips.Count, services = 500, 200
	}
	replace := &massChange{what: "every Pod replaced", writes: 1, do: func(ctx context.Context, set *podset.Set, _ contender) error { return set.Replace(ctx) }}
	decimated := &massChange{what: "90 % of Pods deleted at random", writes: 1.1, do: decimate}
	if cfg.compaction == "idle" {
		replace.slices, decimated.slices = 1.2, 1.2
	}
	return []world{
		{
			name: "50x100", services: 50, podsEach: 100, flips: flips,
			massChange: replace,
		},
		{
			name: "1x5000", services: 1, podsEach: 5000, flips: flips,
			massChange: decimated,
		},
		{name: fmt.Sprintf("%dx20", services), services: services, podsEach: 20, flips: flips, coldTarget: 0.25},
	}
}

// decimate deletes nine of ten Pods, other ones for each contender: those that an earlier one lost
// were created again with higher addresses, and lie together in slices that are made from nothing.
func decimate(ctx context.Context, set *podset.Set, c contender) error {
	places := rand.New(rand.NewPCG(2, uint64(c))).Perm(set.Len())
	return set.Delete(ctx, places[:len(places)*9/10])
}

func names(worlds []world) []string { return selection.Names(worlds, worldName) }

func worldName(w world) string { return w.name }

// choose returns the named worlds in the order of the table, or all worlds.
func choose(all []world, only string) ([]world, error) {
	return selection.Choose(all, worldName, "world", only)
}

// measure measures the worlds in turn, prints the table and reports whether all targets are met. A
// world that fails misses its targets, and the next world follows.
func measure(ctx context.Context, cfg config, chosen []world) (met bool, err error) {
	if cfg.logDir == "" {
		if cfg.logDir, err = os.MkdirTemp("", "trivet-slices-"); err != nil {
			return false, err
		}
		defer os.RemoveAll(cfg.logDir)
	}
	if err := os.MkdirAll(cfg.logDir, 0o755); err != nil {
		return false, err
	}
	began := time.Now()
	var rows []row
	for _, w := range chosen {
		b := &bench{config: cfg, world: w}
		results, err := b.run(ctx)
		if err != nil {
			b.progress("failed: %v", err)
			rows = append(rows, failed(w, err))
		}
		rows = append(rows, results.rows(w)...)
		if ctx.Err() != nil {
			break
		}
	}
	printTable(os.Stdout, rows)
	fmt.Printf("\nAll of it took %v.\n", time.Since(began).Round(time.Second))
	return targetsMet(rows), ctx.Err()
}

// bench measures one world.
type bench struct {
	config
	world world
}

func (b *bench) progress(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "%s %s: %s\n", time.Now().Format(time.TimeOnly), b.world.name, fmt.Sprintf(format, values...))
}
