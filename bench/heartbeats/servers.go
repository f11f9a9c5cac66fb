package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/server"
)

// noRegistrationLimit disables the rate limit of registrations where their rate is not measured.
const noRegistrationLimit = "--max-registrations-per-second=1000000"

// withCluster calls use with its own control plane.
func (b *bench) withCluster(ctx context.Context, use func(*devcluster.Cluster) error) (err error) {
	cluster, err := devcluster.Start(ctx, devcluster.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	return use(cluster)
}

// leasesvc starts a replica that accepts as many streams per connection as the other servers.
func (b *bench) leasesvc(ctx context.Context, cluster *devcluster.Cluster, args ...string) (*server.Server, error) {
	log, err := os.CreateTemp(b.logDir, b.part+"-leasesvc-*.log")
	if err != nil {
		return nil, err
	}
	if err := log.Close(); err != nil {
		return nil, err
	}
	return server.Run(ctx, server.Config{
		ControlPlane: cluster, Service: "leasesvc", BinDir: b.binDir, Log: log.Name(),
		Args: append([]string{fmt.Sprintf("--max-concurrent-streams=%d", maxStreams), "--max-connection-age=0", "--max-registrations-per-second=10000000", "--unlimited-loopback"}, args...),
	})
}

// bareEtcd starts an etcd without TLS, like the other contenders.
func (b *bench) bareEtcd() (process *childprocess.Child, address string, err error) {
	if address, err = devcluster.FreeAddress(); err != nil {
		return nil, "", err
	}
	peers, err := devcluster.FreeAddress()
	if err != nil {
		return nil, "", err
	}
	dir, err := os.MkdirTemp(b.logDir, "etcd-")
	if err != nil {
		return nil, "", err
	}
	process, err = childprocess.Start(childprocess.Config{
		Path: filepath.Join(b.assets, "etcd"), Log: filepath.Join(dir, "log"),
		Args: []string{
			"--data-dir=" + filepath.Join(dir, "data"), "--listen-client-urls=http://" + address, "--advertise-client-urls=http://" + address,
			"--listen-peer-urls=http://" + peers, "--initial-advertise-peer-urls=http://" + peers, "--initial-cluster=default=http://" + peers,
			"--unsafe-no-fsync", "--log-level=warn", "--log-outputs=stderr",
		},
	})
	return process, address, err
}
