package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/bench/internal/pace"
	"github.com/trivet-dev/trivet/bench/internal/selection"
)

// world is a number of hand-made Endpoints objects, with the changes to measure.
type world struct {
	name                            string
	namespaces, services, addresses int
	flips                           pace.Steady
	// cpu, p99 and writes are the allowed shares of upstream's figures for flips; 0 for no target.
	cpu, p99, writes float64
	// rest is the time from a start in which the CPU time and the writes of the start are counted.
	rest time.Duration
	// unseen is the number of changes that a contender finds at a start.
	unseen int
}

func worlds(short bool) []world {
	many := world{
		name: "5000x20", namespaces: 100, services: 5000, addresses: 20, flips: pace.Steady{Count: 1000, Rate: 100}, cpu: 0.3, p99: 0.5, writes: 1,
		rest: 20 * time.Second, unseen: 50,
	}
	one := world{
		name: "1x1000", namespaces: 1, services: 1, addresses: 1000, flips: pace.Steady{Count: 200, Rate: 10},
		rest: 5 * time.Second, unseen: 1,
	}
	if short {
		many.name, many.services, many.flips.Count, many.rest = "500x20", 500, 300, 10*time.Second
		one.flips.Count = 50
	}
	// Upstream's loop reads all slices of the namespace at each sync.
	crowded := many
	crowded.name, crowded.namespaces = crowded.name+"-in-one-namespace", 1
	return []world{many, one, crowded}
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
		if cfg.logDir, err = os.MkdirTemp("", "trivet-mirroring-"); err != nil {
			return false, err
		}
		defer os.RemoveAll(cfg.logDir)
	}
	for _, folder := range []string{cfg.logDir, cfg.profiles} {
		if folder == "" {
			continue
		}
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return false, err
		}
	}
	began := time.Now()
	var (
		rows  []row
		loads []string
	)
	for _, w := range chosen {
		b := &bench{config: cfg, world: w}
		results, err := b.run(ctx)
		if err != nil {
			b.progress("failed: %v", err)
			rows = append(rows, failed(w, err))
		}
		rows = append(rows, results.rows(w)...)
		loads = append(loads, results.loads...)
		if ctx.Err() != nil {
			break
		}
	}
	printTable(os.Stdout, rows)
	fmt.Printf("\nAll of it took %v. Load averages at the begin of each turn: %s.\n", time.Since(began).Round(time.Second), strings.Join(loads, ", "))
	return targetsMet(rows), ctx.Err()
}

// loadAverage returns the average number of runnable threads of the machine in the last minute.
func loadAverage() (string, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	average, _, _ := strings.Cut(string(text), " ")
	return average, nil
}

// bench measures one world.
type bench struct {
	config
	world world
}

func (b *bench) progress(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "%s %s: %s\n", time.Now().Format(time.TimeOnly), b.world.name, fmt.Sprintf(format, values...))
}
