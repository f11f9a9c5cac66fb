package worldtest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

func TestMain(m *testing.M) { worldtest.Main(m) }

// Two kube-apiservers, and two replicas of each service behind proxies, with certificates and the
// rights of the shipped roles. A replica that was killed and separated from etcd works again.
func TestWorld_WorksAgainAfterFaults(t *testing.T) {
	const address, second = "10.98.0.1", "10.98.0.2"
	w := worldtest.New(t, worldtest.Config{
		Name: "whole", Own: &devcluster.Config{AdvertiseAddress: address}, Peers: []string{second}, Roles: []string{"base"}, Proxies: true,
	})
	for n, beside := range []string{address, second} {
		w.Add(worldtest.Leasesvc, n, "--shards=4")
		w.Add(worldtest.Bootstrapsvc, n, "--apiserver-advertise-address="+beside, "--apiserver-port=6443")
		w.Add(worldtest.Slicesvc, n, "--shards=4")
	}
	gateway := w.Add(worldtest.Gateway, 0, "--http-listen=")
	w.Start()
	connection := w.Dial(gateway)
	worldtest.Await(t, 2*time.Minute, w.Working(connection))

	victim := w.Of(worldtest.Leasesvc)[0]
	victim.Kill()
	if err := victim.Err(); err != nil {
		t.Errorf("a killed replica counts as ended by itself: %v", err)
	}
	victim.ToEtcd.Disconnect(true)
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err == nil {
		t.Error("a replica has two processes")
	}
	victim.ToEtcd.Disconnect(false)
	worldtest.Await(t, 2*time.Minute, w.Working(connection))
	for _, r := range w.Replicas {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestWorld_PlainOnTheSharedControlPlane(t *testing.T) {
	w := worldtest.Start(t, worldtest.Config{Name: "plain", Plain: true, Replicas: 2, Agents: 3})
	w.Replica(worldtest.Leasesvc, 1).Kill()
	worldtest.Await(t, time.Minute, func(ctx context.Context) error {
		answer, err := leasev1.NewLeaseServiceClient(w.Operator).ListLeases(ctx, &leasev1.ListLeasesRequest{Parent: "namespaces/-"})
		if err == nil && len(answer.GetLeases()) != 3 {
			err = fmt.Errorf("%d nodes beat, want 3", len(answer.GetLeases()))
		}
		return err
	})
}
