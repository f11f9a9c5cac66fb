package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

// contender is a program that writes slices. Its value is its column in a table.
type contender int

const (
	floor contender = iota
	upstream
	ours
	contenders
)

func (c contender) String() string {
	return [contenders]string{floor: "the floor", upstream: "kube-controller-manager", ours: "slicesvc"}[c]
}

// start starts the contender beside a cluster, without a wait for its readiness.
func (b *bench) start(ctx context.Context, c contender, cluster *devcluster.Cluster) (*childprocess.Child, error) {
	log := filepath.Join(b.logDir, b.world.name+"-"+strings.ReplaceAll(c.String(), " ", "-")+".log")
	switch c {
	case floor:
		return childprocess.Start(childprocess.Config{Env: []string{floorVariable + "=" + cluster.Kubeconfig()}, Log: log})
	case upstream:
		manager, err := childprocess.Start(childprocess.Config{
			Path: filepath.Join(b.assets, "kube-controller-manager"), Log: log,
			Args: []string{
				"--kubeconfig=" + cluster.Kubeconfig(), "--controllers=endpointslice-controller", "--leader-elect=false",
				"--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=1000",
			},
		})
		if err != nil {
			return nil, fmt.Errorf("%w: run `make assets-rivals`", err)
		}
		return manager, nil
	default:
		server, err := server.Run(ctx, server.Config{
			ControlPlane: cluster, Service: "slicesvc", BinDir: b.binDir, Log: log, Args: []string{"--kube-api-qps=500", "--kube-api-burst=1000", "--compaction=" + b.compaction},
		})
		if err != nil {
			return nil, err
		}
		return server.Process(), nil
	}
}
