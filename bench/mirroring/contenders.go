package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

// contender is a program that mirrors Endpoints. Its value is its column in a table.
type contender int

const (
	upstream contender = iota
	ours
	contenders
)

func (c contender) String() string {
	return [contenders]string{upstream: "kube-controller-manager", ours: "slicesvc"}[c]
}

// contending is a running contender.
type contending struct {
	*childprocess.Child
	// server is nil for upstream.
	server *server.Server
}

// start starts the contender beside a cluster. It waits for the readiness of slicesvc only.
func (b *bench) start(ctx context.Context, c contender, cluster *devcluster.Cluster) (*contending, error) {
	log := filepath.Join(b.logDir, b.world.name+"-"+c.String()+".log")
	if c == upstream {
		manager, err := childprocess.Start(childprocess.Config{
			Path: filepath.Join(b.assets, "kube-controller-manager"), Log: log,
			Args: []string{
				"--kubeconfig=" + cluster.Kubeconfig(), "--controllers=endpointslice-mirroring-controller", "--leader-elect=false",
				"--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=1000",
			},
		})
		if err != nil {
			return nil, fmt.Errorf("%w: run `make assets-rivals`", err)
		}
		return &contending{Child: manager}, nil
	}
	server, err := server.Run(ctx, server.Config{
		ControlPlane: cluster, Service: "slicesvc", BinDir: b.binDir, Log: log,
		Args: []string{"--loops=*,endpointslice-mirroring", "--kube-api-qps=500", "--kube-api-burst=1000"},
	})
	if err != nil {
		return nil, err
	}
	return &contending{Child: server.Process(), server: server}, nil
}
