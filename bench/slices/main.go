// Command slices measures slicesvc against the targets it was built for, and prints a Markdown
// table: what readiness flips, cold starts, rollouts and large scale-downs cost in CPU, time,
// writes, slices and memory, beside kube-controller-manager's endpointslice controller and beside
// the floor, a bare client-go program of our own that knows no rules. It exits with 1 if a target
// is missed, and says of every figure in which upstream is ahead that it is.
//
// Each world is a control plane of its own, in which the contenders take turns, each a process
// whose CPU time and memory the kernel tells. All share the machine's cores with etcd,
// kube-apiserver and the load, so only ratios of one run mean much.
//
// Worlds can be had one by one: -only 1x5000. With -short all of them take less time and say less.
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
	if kubeconfig := os.Getenv(floorVariable); kubeconfig != "" {
		os.Exit(floorAsChild(kubeconfig))
	}
	var (
		cfg  config
		only string
	)
	flag.StringVar(&cfg.binDir, "bin", "../bin", "folder with the built commands")
	flag.StringVar(&cfg.assets, "assets", cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), "../.assets"), "folder with kube-controller-manager")
	flag.BoolVar(&cfg.short, "short", false, "measure for a shorter time, which says less")
	flag.StringVar(&only, "only", "", "worlds to measure, with commas between: "+strings.Join(names(worlds(false)), ", ")+"; empty for all")
	flag.StringVar(&cfg.logDir, "logs", "", "folder that keeps the logs of all programs; empty for a temporary one")
	flag.Parse()
	chosen, err := choose(worlds(cfg.short), only)
	if err != nil {
		fmt.Fprintf(os.Stderr, "slices: %v\n", err)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	met, err := measure(ctx, cfg, chosen)
	if err != nil {
		fmt.Fprintf(os.Stderr, "slices: %v\n", err)
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
