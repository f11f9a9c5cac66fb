package simtest

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

// Leasesvc is one replica, the same as its command runs.
type Leasesvc struct {
	t       *testing.T
	address string
	client  leasev1.LeaseServiceClient
}

// StartLeasesvc starts a replica that keeps the sessions of a cluster of its own name, so that
// tests on one control plane do not meet. It ends with the test.
func StartLeasesvc(t *testing.T, cluster *devcluster.Cluster, name string, cfg leasesvc.Config, loops ...string) *Leasesvc {
	t.Helper()
	p := StartProgram(t, cluster, name, leasesvc.Program(&cfg), loops...)
	l := &Leasesvc{t: t, address: p.Member().GRPCAddress}
	connection, err := l.dial(l.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	l.client = leasev1.NewLeaseServiceClient(connection)
	return l
}

func (l *Leasesvc) dial(target string) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// Beat lets a Node beat until the test ends or stop is called, whichever is first.
func (l *Leasesvc) Beat(node string) (stop func()) {
	l.t.Helper()
	a, err := agent.New(agent.Config{
		Targets: []string{l.address}, Dial: l.dial,
		Holders: []agent.Holder{{Class: leasesvc.NodeClass, Name: node, BootID: "boot-of-" + node}},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return inBackground(l.t, "agent of "+node, a.Run)
}

// Session returns the session of a Node.
func (l *Leasesvc) Session(ctx context.Context, node string) (*leasev1.Lease, error) {
	answer, err := l.client.GetLease(ctx, &leasev1.GetLeaseRequest{Name: "namespaces/" + LeaseNamespace + "/leases/" + node})
	return answer.GetLease(), err
}

// inBackground runs something until the test ends or stop is called. What it returns must be nil.
func inBackground(t *testing.T, what string, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}
