// Command heartbeats measures leasesvc against its targets and prints a Markdown table: the cost of
// a heartbeat compared with a bare gRPC server, etcd's LeaseKeepAlive and the Lease that a kubelet
// writes; the memory of a holder; a large fleet; and the time to detect a dead node, compared with
// kube-controller-manager. It exits with 1 if a target is missed.
//
// Every server is a separate process. The kernel reports its CPU time and memory. This process
// simulates the fleet. All share the machine's cores, so figures are comparable only within one
// run, and programs that are compared run in turn.
//
// -only steady,batched selects rows. -short measures less in less time.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	if address := os.Getenv(echoVariable); address != "" {
		os.Exit(echoAsChild(address))
	}
	if value := os.Getenv(loadVariable); value != "" {
		os.Exit(runLoad(value, os.Stdin, os.Stdout))
	}
	var (
		cfg  config
		only string
	)
	flag.StringVar(&cfg.binDir, "bin", "../bin", "folder with the built commands")
	flag.StringVar(&cfg.assets, "assets", cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), "../.assets"), "folder with etcd and kube-controller-manager")
	flag.BoolVar(&cfg.short, "short", false, "measure for a shorter time, which says less")
	flag.StringVar(&only, "only", "", "parts to measure, with commas between: "+strings.Join(names(parts()), ", ")+"; empty for all")
	flag.StringVar(&cfg.logDir, "logs", "", "folder that keeps the logs of all servers; empty for a temporary one")
	flag.Parse()
	chosen, err := choose(parts(), only)
	if err != nil {
		fmt.Fprintf(os.Stderr, "heartbeats: %v\n", err)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	met, err := measure(ctx, cfg, chosen)
	if err != nil {
		fmt.Fprintf(os.Stderr, "heartbeats: %v\n", err)
	}
	if !met || err != nil {
		stop()
		os.Exit(1)
	}
}

// config has the paths of the programs and the extent of the measurement.
type config struct {
	binDir, assets, logDir string
	short                  bool
}
