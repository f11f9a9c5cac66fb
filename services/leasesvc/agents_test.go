package leasesvc_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

// An upgrade may run the old and the new agent of a node at once.
func TestAgents_TwoOfOneBootDoNoHarm(t *testing.T) {
	t.Parallel()
	f, boot := newDuplicateFixture(t)
	first, stopFirst := boot("machine")
	second, _ := boot("machine")
	registered := func(a *agent.Agent) error {
		if s := a.Status(); s.Registered != 1 || s.Beats < 3 {
			return fmt.Errorf("status %+v, want a registered holder that beats", s)
		}
		return nil
	}
	f.eventually(func() error { return errors.Join(registered(first), registered(second)) })
	stopFirst()
	end := time.Now().Add(2 * duplicateGrace)
	for time.Now().Before(end) {
		lease, err := f.leases.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: leaseName("n1")})
		if err != nil || lease.Lease.State == leasev1.Lease_STATE_EXPIRED || lease.Lease.Duplicate != nil {
			t.Fatalf("after the end of one agent: lease %v, error %v", lease, err)
		}
		time.Sleep(duplicateInterval)
	}
	if s := second.Status(); len(s.Superseded) > 0 || s.Registered != 1 {
		t.Errorf("status of the other agent %+v", s)
	}
	if events, _ := f.duplicateEvents(); len(events) > 0 {
		t.Errorf("two agents of one boot count as two machines: %v", events)
	}
}

func TestAgents_AKubeletThatIsNotReportedExpiresUnderALivingAgent(t *testing.T) {
	t.Parallel()
	f, _ := newDuplicateFixture(t)
	h := agent.Holder{Class: leasesvc.NodeClass, Name: "n1", BootID: "machine"}
	a, err := agent.New(agent.Config{
		Targets: []string{f.listen()}, Dial: dialLoopback, Holders: []agent.Holder{h}, BeatOnReport: true,
		Name: "trivet-agent", Version: "v1", Mode: "endpoint",
	})
	if err != nil {
		t.Fatal(err)
	}
	end := background(a.Run)
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	alive := func() *leasev1.Lease {
		t.Helper()
		seen := time.Now()
		if err := a.Report(h, agent.Report{ObservedTime: seen}); err != nil {
			t.Fatal(err)
		}
		if err := a.AwaitRenewal(t.Context(), h, seen); err != nil {
			t.Fatal(err)
		}
		f.awaitBoot("machine")
		response, err := f.leases.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: leaseName("n1")})
		if err != nil {
			t.Fatal(err)
		}
		return response.Lease
	}
	if got := alive().GetAgent(); got.GetName() != "trivet-agent" || got.GetVersion() != "v1" || got.GetMode() != "endpoint" {
		t.Errorf("agent %v", got)
	}
	for range 3 { // a kubelet that writes its Lease at half of the grace period
		alive()
		time.Sleep(duplicateGrace / 2)
	}
	last := a.Renewed(h).Observed
	f.eventually(func() error {
		response, err := f.leases.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: leaseName("n1")})
		if err != nil {
			return err
		}
		if response.Lease.State != leasev1.Lease_STATE_EXPIRED {
			return fmt.Errorf("the lease is %v", response.Lease.State)
		}
		if expired := response.Lease.ExpireTime.AsTime(); expired.Sub(last) > 2*duplicateGrace || expired.Sub(last) < duplicateGrace-500*time.Millisecond {
			return fmt.Errorf("it expired %v after the kubelet was last seen, want %v", expired.Sub(last), duplicateGrace)
		}
		return nil
	})
	if s := a.Status(); !s.Connected || s.LostStreams > 0 {
		t.Errorf("the agent does not live: %+v", s)
	}
	alive()
}
