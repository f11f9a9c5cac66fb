package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/bench/internal/selection"
)

// part is a set of rows that are measured together.
type part struct {
	name    string
	measure func(context.Context, *bench) ([]row, error)
}

func parts() []part {
	return []part{
		{name: "steady", measure: measureSteady},
		{name: "saturated", measure: measureSaturated},
		{name: "authorization", measure: measureAuthorization},
		{name: "batched", measure: measureBatched},
		{name: "memory", measure: measureMemory},
		{name: "fleet", measure: measureFleet},
		{name: "deaths", measure: measureDeadNodes},
		{name: "sweep", measure: measureSweep},
		{name: "takeover", measure: measureTakeover},
	}
}

func names(parts []part) []string { return selection.Names(parts, partName) }

func partName(p part) string { return p.name }

// choose returns the named parts in the order of the table, or all parts.
func choose(all []part, only string) ([]part, error) {
	return selection.Choose(all, partName, "part", only)
}

// measure measures the parts in turn, prints the table and reports whether all targets are met. A
// part that fails misses its target, and the next part follows.
func measure(ctx context.Context, cfg config, chosen []part) (met bool, err error) {
	if cfg.logDir == "" {
		if cfg.logDir, err = os.MkdirTemp("", "trivet-heartbeats-"); err != nil {
			return false, err
		}
		defer os.RemoveAll(cfg.logDir)
	}
	if err := os.MkdirAll(cfg.logDir, 0o755); err != nil {
		return false, err
	}
	began := time.Now()
	var rows []row
	for _, p := range chosen {
		b := &bench{config: cfg, part: p.name}
		b.progress("…")
		measured, err := p.measure(ctx, b)
		if ctx.Err() != nil {
			printTable(os.Stdout, rows) // with the rows before the interruption
			return false, errors.Join(ctx.Err(), err)
		}
		if err != nil {
			b.progress("failed: %v", err)
			measured = append(measured, row{what: p.name, ours: "failed: " + firstLine(err), missed: true})
		}
		rows = append(rows, measured...)
	}
	printTable(os.Stdout, rows)
	fmt.Printf("\nAll of it took %v.\n", time.Since(began).Round(time.Second))
	return targetsMet(rows), nil
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// bench has what every part needs.
type bench struct {
	config
	part string
}

func (b *bench) progress(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "%s %s: %s\n", time.Now().Format(time.TimeOnly), b.part, fmt.Sprintf(format, values...))
}

// either returns whole or, in a short run, short.
func either[T any](b *bench, whole, short T) T {
	if b.short {
		return short
	}
	return whole
}
