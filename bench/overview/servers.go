package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

// measureServers starts a control plane and the three servers, and loads one server after the
// other.
func measureServers(ctx context.Context, cfg config) ([]row, error) {
	dir, err := os.MkdirTemp("", "trivet-overview-")
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
	servers := map[string]*server.Server{}
	for _, name := range []string{"leasesvc", "bootstrapsvc", "slicesvc"} {
		started, err := server.Run(ctx, server.Config{
			ControlPlane: cluster, Service: name, BinDir: cfg.binDir, Log: filepath.Join(dir, name+".log"), Args: extraFlags(name),
		})
		if err != nil {
			return nil, err
		}
		defer started.Stop()
		servers[name] = started
	}
	beats, err := measureBeats(ctx, cfg, servers["leasesvc"])
	if err != nil {
		return nil, err
	}
	flips, err := measureFlips(ctx, cfg, kube, servers["slicesvc"])
	if err != nil {
		return nil, err
	}
	memory, err := measureMemory(servers)
	return append(append(beats, flips...), memory...), err
}

func extraFlags(name string) []string {
	if name == "leasesvc" {
		return []string{"--max-concurrent-streams=1000"}
	}
	return nil
}

func measureMemory(servers map[string]*server.Server) ([]row, error) {
	var rows []row
	for _, name := range []string{"leasesvc", "bootstrapsvc", "slicesvc"} {
		resident, err := servers[name].Process().Resident()
		if err != nil {
			return nil, err
		}
		rows = append(rows, row{what: "resident memory of " + name + " after all of it", figure: fmt.Sprintf("%d MiB", resident>>20)})
	}
	return rows, nil
}
