package bootstrapsvc_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trivet-dev/trivet/internal/process"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/test/lab/bootstraptest"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// startProcess runs the server process beside the kube-apiserver of a cluster until the test ends.
func startProcess(t *testing.T, cluster *devcluster.Cluster, address string) *process.Process {
	t.Helper()
	own := bootstrapsvc.DefaultConfig()
	own.AdvertiseAddress = address
	program := bootstrapsvc.Program(&own)
	cfg := process.DefaultConfig(program)
	cfg.Cluster = "process"
	cfg.RPC.Insecure = true
	cfg.RPC.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Etcd.Endpoints = cluster.EtcdEndpoints()
	cfg.Etcd.CAFile, cfg.Etcd.CertFile, cfg.Etcd.KeyFile = cluster.EtcdFiles()
	cfg.Kube.Kubeconfig = cluster.Kubeconfig()
	if problems := append(cfg.Validate(program), program.Validate()...); len(problems) != 0 {
		t.Fatal(problems)
	}
	p, err := process.New(cfg, program, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("process ended: %v", err)
		}
	})
	return p
}

// The test stops servers of a control plane of its own.
func TestProgram_OutagesRemoveNothing(t *testing.T) {
	t.Parallel()
	cluster := testkit.OwnCluster(t, devcluster.Config{})
	p := startProcess(t, cluster, "10.99.8.1")
	connection, err := grpc.NewClient(p.Member().GRPCAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	ready := isReady(t, statusv1.NewStatusServiceClient(connection))
	testkit.Eventually(t, bootstraptest.Soon, ready)
	client := newClients(connection)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.8.1"))

	for name, outage := range map[string]struct{ begin, end func() error }{
		"kube-apiserver": {begin: cluster.StopAPIServer, end: cluster.StartAPIServer},
		"etcd":           {begin: cluster.StopEtcd, end: cluster.StartEtcd},
	} {
		t.Run(name, func(t *testing.T) {
			if err := outage.begin(); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, bootstraptest.Soon, func() error {
				if ready() == nil {
					return fmt.Errorf("%s is stopped, and the process is ready", name)
				}
				return nil
			})
			if err := outage.end(); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, bootstraptest.Soon, ready)
			testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.8.1"))
			testkit.Eventually(t, bootstraptest.Soon, serverIsReady(t, client))
		})
	}
}

// isReady returns an error unless the process is ready.
func isReady(t *testing.T, client statusv1.StatusServiceClient) func() error {
	return func() error {
		answer, err := client.GetStatus(t.Context(), &statusv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		if !answer.GetStatus().GetReady() {
			return fmt.Errorf("not ready: %v", answer.GetStatus().GetProblems())
		}
		return nil
	}
}

// serverIsReady returns an error unless the one kube-apiserver reports and is ready.
func serverIsReady(t *testing.T, client *clients) func() error {
	return func() error {
		answer, err := client.ListAPIServers(t.Context(), &bootstrapv1.ListAPIServersRequest{})
		if err != nil {
			return err
		}
		if servers := answer.GetApiservers(); len(servers) != 1 || !servers[0].GetReady() {
			return fmt.Errorf("apiservers are %v", servers)
		}
		return nil
	}
}
