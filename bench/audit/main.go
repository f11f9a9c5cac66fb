// Command audit measures bootstrapsvc against its targets and prints a Markdown table: the cost of
// an audit of a large cluster, the time to repair a lost allocation, and the time to remove a dead
// or frozen kube-apiserver from the endpoints. It compares kube-apiserver's own repairers and
// reconciler in the same run, and a bare client-go program that holds the same objects without a
// comparison. It exits with 1 if a target is missed.
//
// Every program is a separate process. The kernel reports its CPU time and memory. All share the
// machine's cores with etcd and the kube-apiservers, so figures are comparable only within one run.
//
// -only endpoints selects parts. -short measures less in less time, and does not wait up to three
// minutes for kube-apiserver's own repairers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/trivet-dev/trivet/bench/internal/selection"
)

func main() {
	if kubeconfig := os.Getenv(floorVariable); kubeconfig != "" {
		os.Exit(floorAsChild(kubeconfig))
	}
	var (
		cfg  config
		only string
	)
	flag.StringVar(&cfg.binDir, "bin", "../bin", "folder with the built commands")
	flag.BoolVar(&cfg.short, "short", false, "measure for a shorter time, which says less")
	flag.StringVar(&only, "only", "", "parts to measure, with commas between: allocations, endpoints; empty for all")
	flag.StringVar(&cfg.logDir, "logs", "", "folder that keeps the logs of all programs; empty for a temporary one")
	flag.Parse()
	chosen, err := choose(only)
	if err != nil {
		fmt.Fprintf(os.Stderr, "audit: %v\n", err)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	met, err := run(ctx, cfg, chosen)
	if err != nil {
		fmt.Fprintf(os.Stderr, "audit: %v\n", err)
	}
	if !met || err != nil {
		stop()
		os.Exit(1)
	}
}

// config has the paths of the programs and the extent of the measurement.
type config struct {
	binDir, logDir string
	short          bool
}

// part is a separate measurement. It returns the rows before an error with the error.
type part struct {
	name    string
	measure func(context.Context, *bench) ([]row, error)
}

func parts() []part {
	return []part{{"allocations", measureAllocations}, {"endpoints", measureEndpoints}}
}

// choose returns the named parts, or all parts.
func choose(only string) ([]part, error) {
	return selection.Choose(parts(), func(p part) string { return p.name }, "part", only)
}

// bench is one run.
type bench struct{ config }

func (b *bench) progress(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, values...))
}

// either returns full or, in a short run, short.
func either[T any](b *bench, full, short T) T {
	if b.short {
		return short
	}
	return full
}

func run(ctx context.Context, cfg config, chosen []part) (met bool, err error) {
	if cfg.logDir == "" {
		if cfg.logDir, err = os.MkdirTemp("", "trivet-audit-"); err != nil {
			return false, err
		}
		defer os.RemoveAll(cfg.logDir)
	}
	if err := os.MkdirAll(cfg.logDir, 0o755); err != nil {
		return false, err
	}
	began := time.Now()
	b := &bench{config: cfg}
	var rows []row
	var problems []error
	for _, p := range chosen {
		measured, err := p.measure(ctx, b)
		rows = append(rows, measured...)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", p.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	printTable(os.Stdout, rows)
	fmt.Printf("\nAll of it took %v.\n", time.Since(began).Round(time.Second))
	return targetsMet(rows), errors.Join(problems...)
}
