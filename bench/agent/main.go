// Command agent measures the memory and the CPU time of trivet-agent in both modes, beside a real
// kube-apiserver and a real leasesvc, and prints a Markdown table. It exits with 1 if a target is
// missed.
//
// In endpoint mode this process makes the requests of a kubelet through the endpoint: watches, the
// renewal of the Lease and of the Node's status, and one burst of parallel reads.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

func main() {
	var cfg config
	flag.StringVar(&cfg.agent, "agent", "../bin/stripped/trivet-agent", "the program, built as the image has it")
	flag.StringVar(&cfg.binDir, "bin", "../bin", "folder with leasesvc")
	flag.DurationVar(&cfg.rest, "rest", time.Minute, "how long to count the CPU time, and how long to wait after the burst")
	flag.IntVar(&cfg.watches, "watches", 60, "watches of the kubelet: it has one for each ConfigMap and Secret of its Pods")
	flag.IntVar(&cfg.burst, "burst", 200, "parallel reads of the burst")
	flag.Parse()
	if min(cfg.watches, cfg.burst) < 1 || cfg.rest < time.Second {
		fmt.Fprintln(os.Stderr, "agent: every count must be at least 1 and the rest at least 1 s")
		os.Exit(2)
	}
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		_ = os.Setenv("KUBEBUILDER_ASSETS", "../.assets")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	rows, err := measure(ctx, cfg)
	if err != nil {
		fmt.Fprintf(os.Stderr, "agent: %v\n", err)
	}
	printTable(os.Stdout, rows)
	if err != nil || !met(rows) {
		stop()
		os.Exit(1)
	}
}

// config has the paths of the programs and the extent of the measurement.
type config struct {
	agent, binDir  string
	rest           time.Duration
	watches, burst int
}

// measure measures both modes, one after the other.
func measure(ctx context.Context, cfg config) (rows []row, err error) {
	node, err := newNode(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = cmp.Or(err, node.close()) }()
	if rows, err = node.probeMode(ctx); err != nil {
		return rows, fmt.Errorf("probe mode: %w", err)
	}
	more, err := node.endpointMode(ctx)
	if err != nil {
		err = fmt.Errorf("endpoint mode: %w", err)
	}
	return append(rows, more...), err
}

// Targets.
const (
	mostMiB        = 25.0
	mostMillicores = 1.0
)

// row is one figure; target 0 means that it has none.
type row struct {
	what          string
	value, target float64
	unit          string
}

func (r row) missed() bool { return r.target > 0 && r.value > r.target }

func met(rows []row) bool { return !slices.ContainsFunc(rows, row.missed) }

func printTable(out io.Writer, rows []row) {
	fmt.Fprint(out, "| what | measured | target |\n|---|---|---|\n")
	for _, r := range rows {
		target, missed := "", ""
		if r.target > 0 {
			target = fmt.Sprintf("≤ %g %s", r.target, r.unit)
		}
		if r.missed() {
			missed = "**missed:** "
		}
		fmt.Fprintf(out, "| %s | %s%.2f %s | %s |\n", r.what, missed, r.value, r.unit, target)
	}
}
