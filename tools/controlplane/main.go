package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

//go:embed go.mod
var goMod string

const assetsEnvironment = "KUBEBUILDER_ASSETS"

func main() {
	out := flag.String("out", filepath.Join("..", "..", ".assets"), "directory for the binaries")
	withRivals := flag.Bool("rivals", false, "also build kube-controller-manager, which only measurements and conformance tests need")
	withNodes := flag.Bool("nodes", false, "also build kube-scheduler, kubelet and what --rivals builds, which only a cluster with real nodes needs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *withRivals || *withNodes, *withNodes); err != nil {
		fmt.Fprintln(os.Stderr, "assets:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out string, withRivals, withNodes bool) error {
	all, err := targetsOf(goMod)
	if err != nil {
		return err
	}
	// Each set has a stamp of its own, so that one is as fresh with the others beside it as
	// without.
	sets := []set{{all.controlPlane, stampName}}
	if withRivals {
		sets = append(sets, set{all.rivals, rivalsStampName})
	}
	if withNodes {
		sets = append(sets, set{all.nodes, nodesStampName})
	}
	if provided := os.Getenv(assetsEnvironment); provided != "" {
		fmt.Printf("assets: %s=%s provides the control plane, nothing to build\n", assetsEnvironment, provided)
		var wanted []target
		for _, one := range sets {
			wanted = append(wanted, one.targets...)
		}
		return requireBinaries(provided, wanted)
	}
	out, err = filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("find %s: %w", out, err)
	}
	for _, one := range sets {
		b := &builder{goTool: "go", out: out, stamp: one.stamp, progress: os.Stdout, every: progressEvery}
		if err := b.build(ctx, one.targets, goMod); err != nil {
			return err
		}
	}
	return nil
}

// set is what one stamp covers.
type set struct {
	targets []target
	stamp   string
}

// requireBinaries names every binary that is not there.
func requireBinaries(dir string, targets []target) error {
	var problems []error
	for _, t := range targets {
		if _, err := os.Stat(filepath.Join(dir, t.name)); err != nil {
			problems = append(problems, fmt.Errorf("%s misses %s (%w): put it there, or unset %s to have it built", dir, t.name, err, assetsEnvironment))
		}
	}
	return errors.Join(problems...)
}
