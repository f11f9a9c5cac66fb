// Command term measures the time of leadership changes and the idle cost of internal/term,
// client-go's leaderelection and etcd's concurrency.Election. It prints a Markdown table and exits
// with 1 if internal/term misses a target.
//
// Candidates are child processes that run this binary, so that they can be killed. A time starts
// with an action of this process on one candidate, and ends with a message of the next candidate.
// Each mechanism has its own etcd, and client-go's also a kube-apiserver. The mechanisms run in
// turn. Only the idle costs are measured concurrently.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if value := os.Getenv(candidateVariable); value != "" {
		os.Exit(candidateAsChild(value))
	}
	var cfg config
	flag.IntVar(&cfg.kills, "kills", 20, "holders to kill, with internal/term and etcd")
	flag.IntVar(&cfg.stops, "stops", 200, "holders to stop in order, with internal/term and etcd")
	flag.IntVar(&cfg.slow, "slow", 8, "holders to kill, and to stop, with client-go: each takes up to 24 s")
	flag.IntVar(&cfg.joins, "joins", 20, "replicas to join and leave where 64 shards are divided")
	flag.DurationVar(&cfg.rest, "rest", time.Minute, "how long to count requests and CPU time at rest")
	flag.Parse()
	if min(cfg.kills, cfg.stops, cfg.slow, cfg.joins) < 1 || cfg.rest < time.Second {
		fmt.Fprintln(os.Stderr, "term: every count must be at least 1 and the rest at least 1 s")
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	met, err := run(ctx, cfg, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "term: %v\n", err)
	}
	if !met {
		stop()
		os.Exit(1)
	}
}

// config is the extent of the measurement.
type config struct {
	kills, stops, slow, joins int
	rest                      time.Duration
}

// run measures everything, prints the table and reports whether all targets are met.
func run(ctx context.Context, cfg config, out, progress io.Writer) (bool, error) {
	results := map[mechanism]*result{}
	for _, m := range []mechanism{terms, leases, elections} {
		results[m] = &result{}
		fmt.Fprintf(progress, "measuring %s…\n", m)
		if err := measure(ctx, cfg, m, results[m]); err != nil {
			return false, fmt.Errorf("%s: %w", m, err)
		}
	}
	fmt.Fprintln(progress, "counting the costs at rest…")
	if err := measureRest(ctx, cfg, results); err != nil {
		return false, fmt.Errorf("costs at rest: %w", err)
	}
	rows := compare(results)
	printTable(out, rows)
	return met(rows), nil
}
