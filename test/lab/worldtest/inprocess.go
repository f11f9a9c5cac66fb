package worldtest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"

	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/process"
)

// RunInProcess runs a replica in this process until the end of the test, on free ports of loopback.
// Its output goes to log. change changes its configuration; it may be nil.
func (w *World) RunInProcess(t testing.TB, program process.Program, log io.Writer, change func(*process.Config)) *process.Process {
	t.Helper()
	cfg := process.DefaultConfig(program)
	cfg.Cluster = w.Name
	cfg.RPC.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.RPC.Insecure, cfg.RPC.TLS = w.PKI == nil, w.ServerFiles(program.Name, 0)
	cfg.Kube.Kubeconfig = w.kubeconfig(program.Name, 0)
	cfg.Etcd.Endpoints = w.Cluster.EtcdEndpoints()
	cfg.Etcd.CAFile, cfg.Etcd.CertFile, cfg.Etcd.KeyFile = w.Cluster.EtcdFiles()
	cfg.Runtime = process.Runtime{LogLevel: observe.NewLogLevel(cfg.Log), Flags: map[string]string{"cluster": cfg.Cluster}}
	if change != nil {
		change(&cfg)
	}
	problems := cfg.Validate(program)
	if program.Validate != nil {
		problems = append(problems, program.Validate()...)
	}
	if err := errors.Join(problems...); err != nil {
		t.Fatal(err)
	}
	replica, err := process.New(cfg, program, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- replica.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", program.Name, err)
		}
	})
	return replica
}
