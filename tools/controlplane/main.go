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
	"slices"
	"syscall"
)

//go:embed go.mod
var goMod string

const assetsEnvironment = "KUBEBUILDER_ASSETS"

func main() {
	out := flag.String("out", filepath.Join("..", "..", ".assets"), "directory for the binaries")
	withRivals := flag.Bool("rivals", false, "also build kube-controller-manager, which only measurements and conformance tests need")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *withRivals); err != nil {
		fmt.Fprintln(os.Stderr, "assets:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out string, withRivals bool) error {
	controlPlane, rivals, err := targetsOf(goMod)
	if err != nil {
		return err
	}
	wanted := controlPlane
	if withRivals {
		wanted = slices.Concat(controlPlane, rivals)
	}
	if provided := os.Getenv(assetsEnvironment); provided != "" {
		fmt.Printf("assets: %s=%s provides the control plane, nothing to build\n", assetsEnvironment, provided)
		return requireBinaries(provided, wanted)
	}
	out, err = filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("find %s: %w", out, err)
	}
	b := &builder{goTool: "go", out: out, stamp: stampName, progress: os.Stdout, every: progressEvery}
	if err := b.build(ctx, controlPlane, goMod); err != nil || !withRivals {
		return err
	}
	// A stamp of their own, so that the control plane is as fresh with rivals beside it as without.
	b.stamp = rivalsStampName
	return b.build(ctx, rivals, goMod)
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
