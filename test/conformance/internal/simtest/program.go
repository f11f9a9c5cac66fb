package simtest

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// StartProgram runs one replica of a service, the same as its command does, until the test ends. It
// works for a cluster of that name, so that tests on one control plane do not meet, and does all
// its loops and those named.
func StartProgram(t *testing.T, cluster *devcluster.Cluster, name string, program process.Program, loops ...string) *process.Process {
	t.Helper()
	settings := process.DefaultConfig(program)
	settings.Cluster, settings.Loops = name, append([]string{"*"}, loops...)
	settings.RPC.Listen, settings.Admin.Listen, settings.RPC.Insecure = "127.0.0.1:0", "127.0.0.1:0", true
	settings.RPC.DrainTimeout = time.Second
	settings.Kube.Kubeconfig = cluster.Kubeconfig()
	settings.Etcd = etcdOf(cluster)
	problems := settings.Validate(program)
	if program.Validate != nil {
		problems = append(problems, program.Validate()...)
	}
	if err := errors.Join(problems...); err != nil {
		t.Fatal(err)
	}
	p, err := process.New(settings, program, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	inBackground(t, program.Name, p.Run)
	return p
}

func etcdOf(cluster *devcluster.Cluster) etcdconn.Config {
	cfg := etcdconn.DefaultConfig()
	cfg.Endpoints = cluster.EtcdEndpoints()
	cfg.CAFile, cfg.CertFile, cfg.KeyFile = cluster.EtcdFiles()
	return cfg
}
