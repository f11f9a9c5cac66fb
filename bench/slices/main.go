// Command slices measures slicesvc against its targets and prints a Markdown table: the cost of
// readiness flips, cold starts, rollouts and large scale-downs in CPU, time, writes, slices and
// memory. It compares kube-controller-manager's endpointslice controller and the floor, a bare
// client-go program without rules. It exits with 1 if a target is missed, and marks each figure in
// which upstream is better.
//
// Each world has its own control plane, in which the contenders run in turn as separate processes.
// The kernel reports their CPU time and memory. All share the machine's cores with etcd,
// kube-apiserver and the load, so only ratios within one run are comparable.
//
// -compaction idle lets slicesvc compact. -only 1x5000 selects worlds. -short measures less in less
// time. -scale measures several replicas of slicesvc and many watchers of slices instead.
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
		cfg    config
		only   string
		scaled bool
	)
	flag.StringVar(&cfg.binDir, "bin", "../bin", "folder with the built commands")
	flag.StringVar(&cfg.assets, "assets", cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), "../.assets"), "folder with kube-controller-manager")
	flag.BoolVar(&cfg.short, "short", false, "measure for a shorter time, which says less")
	flag.StringVar(&only, "only", "", "worlds to measure, with commas between: "+strings.Join(names(worlds(config{})), ", ")+"; empty for all")
	flag.StringVar(&cfg.logDir, "logs", "", "folder that keeps the logs of all programs; empty for a temporary one")
	flag.StringVar(&cfg.compaction, "compaction", "off", "--compaction of slicesvc: off or idle")
	flag.BoolVar(&scaled, "scale", false, "measure several replicas and many watchers of slices instead of the worlds")
	flag.Parse()
	chosen, err := choose(worlds(cfg), only)
	if err != nil {
		fmt.Fprintf(os.Stderr, "slices: %v\n", err)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if scaled {
		if err := measureScale(ctx, cfg); err != nil {
			fmt.Fprintf(os.Stderr, "slices: %v\n", err)
			stop()
			os.Exit(1)
		}
		return
	}
	met, err := measure(ctx, cfg, chosen)
	if err != nil {
		fmt.Fprintf(os.Stderr, "slices: %v\n", err)
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
	// compaction is the value of the flag of slicesvc.
	compaction string
}
