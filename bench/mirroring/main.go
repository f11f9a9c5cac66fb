// Command mirroring measures slicesvc's loop endpointslice-mirroring beside
// kube-controller-manager's endpointslice-mirroring-controller and prints a Markdown table: the
// cost of changes of hand-made Endpoints and of starts in CPU, latency, time, writes and memory. It
// exits with 1 if a target is missed.
//
// Each world has its own control plane. The contenders take turns in it as separate processes, for
// several rounds, each on the slices that the other one left. The kernel reports their CPU time and
// memory. All share the machine's cores with etcd, kube-apiserver and the load, so the table has
// the median of the ratios of all rounds.
//
// -only 1x1000 selects worlds. -short measures less in less time. -profiles keeps profiles of
// slicesvc for each round, which costs CPU time.
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
	var (
		cfg   config
		only  string
		short bool
	)
	flag.StringVar(&cfg.binDir, "bin", "../bin", "folder with the built commands")
	flag.StringVar(&cfg.assets, "assets", cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), "../.assets"), "folder with kube-controller-manager")
	flag.BoolVar(&short, "short", false, "measure for a shorter time, which says less")
	flag.IntVar(&cfg.rounds, "rounds", 0, "rounds in which each contender takes a turn; 0 for 3, or 1 with -short")
	flag.StringVar(&only, "only", "", "worlds to measure, with commas between: "+strings.Join(names(worlds(false)), ", ")+"; empty for all")
	flag.StringVar(&cfg.logDir, "logs", "", "folder that keeps the logs of all programs; empty for a temporary one")
	flag.StringVar(&cfg.profiles, "profiles", "", "folder for CPU and heap profiles of slicesvc; empty for none")
	flag.Parse()
	if cfg.rounds <= 0 {
		cfg.rounds = 3
		if short {
			cfg.rounds = 1
		}
	}
	chosen, err := choose(worlds(short), only)
	if err != nil {
		fmt.Fprintf(os.Stderr, "mirroring: %v\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	met, err := measure(ctx, cfg, chosen)
	if err != nil {
		fmt.Fprintf(os.Stderr, "mirroring: %v\n", err)
	}
	if !met || err != nil {
		stop()
		os.Exit(1)
	}
}

// config has the paths of the programs and the extent of the measurement.
type config struct {
	binDir, assets, logDir, profiles string
	rounds                           int
}
