// Command audit measures bootstrapsvc against the targets it was built for, and prints a Markdown
// table: what it costs to compare a large cluster's Services with what is allocated, and how soon a
// lost allocation is made good and a dead or hung kube-apiserver is out of the endpoints, beside
// what kube-apiserver does itself in the same run and beside a bare client-go program that keeps
// the same objects and compares nothing. It exits with 1 if a target is missed.
//
// Every program is a process of its own, whose CPU time and memory the kernel tells. All share the
// machine's cores with etcd and the kube-apiservers, so a figure means most beside another of the
// same run.
//
// Parts can be had one by one: -only endpoints. With -short all of them take less time and say
// less, and what kube-apiserver's own repairers take, up to three minutes, is not waited for.
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

// config is where the programs are, and how long to measure.
type config struct {
	binDir, logDir string
	short          bool
}

// part is what can be measured by itself. Rows that were measured before an error are returned
// beside it.
type part struct {
	name    string
	measure func(context.Context, *bench) ([]row, error)
}

func parts() []part {
	return []part{{"allocations", measureAllocations}, {"endpoints", measureEndpoints}}
}

// choose returns the parts that are named; all of them where none is.
func choose(only string) ([]part, error) {
	return selection.Choose(parts(), func(p part) string { return p.name }, "part", only)
}

// bench is one run.
type bench struct{ config }

func (b *bench) say(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, values...))
}

// either is full, or short where a short run was asked for.
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
