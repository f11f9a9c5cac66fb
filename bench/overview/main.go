// Command overview measures the four servers once on this machine and prints a Markdown table: the
// start time of `trivet-lab up`, the cost of a heartbeat and of a readiness flip, and the memory of
// each server.
//
// It starts an etcd, a kube-apiserver and each server as separate processes, and reads their CPU
// time from the kernel. All processes share the machine's cores, so only ratios within one run are
// comparable.
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
	var cfg config
	flag.StringVar(&cfg.binDir, "bin", "../bin", "folder with the built commands")
	flag.DurationVar(&cfg.beatFor, "beat-for", 20*time.Second, "how long to send heartbeats")
	flag.IntVar(&cfg.flips, "flips", 3000, "readiness flips to write")
	flag.IntVar(&cfg.flipRate, "flip-rate", 100, "readiness flips per second")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := measure(ctx, cfg, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "overview: %v\n", err)
		stop()
		os.Exit(1)
	}
}

type config struct {
	binDir          string
	beatFor         time.Duration
	flips, flipRate int
}

// row is one measured figure.
type row struct{ what, figure string }

func measure(ctx context.Context, cfg config, out, progress io.Writer) error {
	var table []row
	for _, part := range []struct {
		name string
		run  func(context.Context, config) ([]row, error)
	}{
		{name: "start of trivet-lab up", run: measureUp},
		{name: "heartbeats and readiness flips", run: measureServers},
	} {
		fmt.Fprintf(progress, "measuring %s…\n", part.name)
		rows, err := part.run(ctx, cfg)
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		table = append(table, rows...)
	}
	fmt.Fprintln(out, "| what | figure |")
	fmt.Fprintln(out, "|---|---|")
	for _, r := range table {
		fmt.Fprintf(out, "| %s | %s |\n", r.what, r.figure)
	}
	return nil
}
