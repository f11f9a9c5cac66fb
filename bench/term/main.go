// Command term measures how fast leadership moves, and what it costs at rest, with internal/term
// and with two others beside it: client-go's leaderelection and etcd's concurrency.Election. It
// prints a Markdown table and exits with 1 if internal/term misses a target.
//
// Candidates are processes of their own, this binary run again, so that they can be killed; a time
// is taken between what this process does to one candidate and what it reads from the next. Each
// mechanism has an etcd to itself (client-go's with a kube-apiserver before it), and the mechanisms
// come one after the other. Only the costs at rest are counted side by side.
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
	if value := os.Getenv(seatVariable); value != "" {
		os.Exit(standAsChild(value))
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

// config is how often and how long to measure.
type config struct {
	kills, stops, slow, joins int
	rest                      time.Duration
}

// run measures everything, prints the table and reports whether every target was met.
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
