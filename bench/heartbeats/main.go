// Command heartbeats measures leasesvc against the targets it was built for, and prints a Markdown
// table: what a heartbeat costs beside a bare gRPC server, etcd's LeaseKeepAlive and the Lease that
// a kubelet writes; what a holder costs in memory; a large fleet; and how soon a death is noticed,
// beside kube-controller-manager. It exits with 1 if a target is missed.
//
// Every server is a process of its own, whose CPU time and memory the kernel tells; this process
// plays the fleet. All of them share the machine's cores, so a figure means most beside another of
// the same run: rows that compare take turns.
//
// Rows can be had one by one: -only steady,batched. With -short all of them take less time and say
// less.
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

// config is where the programs are, and how long to measure.
type config struct {
	binDir, assets, logDir string
	short                  bool
}
