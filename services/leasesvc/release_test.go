package leasesvc_test

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

// An agent that is told to release ends its leases when it stops; another one leaves them.
func TestRelease_AgentReleasesItsLeasesWhenItIsToldTo(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	run := func(name string, release bool) (stop func() error) {
		t.Helper()
		a, err := agent.New(agent.Config{
			// No replica listens at the first target, as after the end of a replica.
			Targets: []string{"127.0.0.1:1", f.listen()}, Dial: dialLoopback, ReleaseOnStop: release,
			Holders: []agent.Holder{{Class: leasesvc.NodeClass, Name: name, BootID: "1"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		stop = background(a.Run)
		f.eventually(func() error {
			response, err := f.leases.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: leaseName(name)})
			if err == nil && response.Lease.Write.State != leasev1.Lease_Write_STATE_WRITTEN {
				err = fmt.Errorf("the write is %v", response.Lease.Write.State)
			}
			return err
		})
		return stop
	}
	released, kept := run("n1", true), run("n2", false)
	for _, stop := range []func() error{released, kept} {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
	_, err := f.leases.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: leaseName("n1")})
	expectError(t, "the released lease", err, codes.NotFound, "LEASE_NOT_FOUND")
	if _, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), "n1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Lease object of the released lease: %v, want it deleted", err)
	}
	if lease := f.get("n2"); lease.State != leasev1.Lease_STATE_ALIVE {
		t.Errorf("the kept lease is %v", lease.State)
	}
}

// An agent that stops while its kubelet lives on releases the lease and keeps the object.
func TestRelease_KeepsTheLeaseObjectWhenAsked(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	holder := &leasev1.Holder{Class: leasesvc.NodeClass, Name: "n1", BootId: "1"}
	f.beat(1, holder)
	f.awaitWrite("n1", leasev1.Lease_Write_STATE_WRITTEN)
	for range 2 { // the second call finds no lease
		if _, err := f.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder, KeepObject: true}); err != nil {
			t.Fatal(err)
		}
		_, err := f.leases.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: leaseName("n1")})
		expectError(t, "the released lease", err, codes.NotFound, "LEASE_NOT_FOUND")
		if _, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), "n1", metav1.GetOptions{}); err != nil {
			t.Errorf("the Lease object: %v, want it kept", err)
		}
	}
	f.beat(2, holder)
	if lease := f.get("n1"); lease.State != leasev1.Lease_STATE_ALIVE {
		t.Errorf("the lease of an agent that is back is %v", lease.State)
	}
}
