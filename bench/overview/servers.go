package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/bench/internal/child"
	"github.com/trivet-dev/trivet/internal/devcluster"
)

// measureLegs starts a control plane and the three legs, and loads one leg after the other.
func measureLegs(ctx context.Context, cfg config) ([]row, error) {
	dir, err := os.MkdirTemp("", "trivet-house-")
	if err != nil {
		return nil, err
	}
	cluster, err := devcluster.Start(ctx, devcluster.Config{DataDir: dir})
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	defer cluster.Stop()
	kube, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		return nil, err
	}
	legs := map[string]*child.Leg{}
	for _, name := range []string{"leasesvc", "bootstrapsvc", "slicesvc"} {
		started, err := child.StartLeg(ctx, cluster, child.LegConfig{
			Name: name, BinDir: cfg.binDir, Log: filepath.Join(dir, name+".log"), Args: extraFlags(name),
		})
		if err != nil {
			return nil, err
		}
		defer started.Stop()
		legs[name] = started
	}
	beats, err := measureBeats(ctx, cfg, legs["leasesvc"])
	if err != nil {
		return nil, err
	}
	flips, err := measureFlips(ctx, cfg, kube, legs["slicesvc"])
	if err != nil {
		return nil, err
	}
	memory, err := measureMemory(legs)
	return append(append(beats, flips...), memory...), err
}

func extraFlags(name string) []string {
	if name == "leasesvc" {
		return []string{"--max-concurrent-streams=1000"}
	}
	return nil
}

func measureMemory(legs map[string]*child.Leg) ([]row, error) {
	var rows []row
	for _, name := range []string{"leasesvc", "bootstrapsvc", "slicesvc"} {
		resident, err := legs[name].Resident()
		if err != nil {
			return nil, err
		}
		rows = append(rows, row{what: "resident memory of " + name + " after all of it", figure: fmt.Sprintf("%d MiB", resident>>20)})
	}
	return rows, nil
}
