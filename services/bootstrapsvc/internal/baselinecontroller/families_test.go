package baselinecontroller

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/devcluster"
	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// keeper plans default/kubernetes on a real apiserver as bootstrapsvc does.
type keeper struct {
	*Cluster
	want baseline.Service
}

// startKeeper starts a control plane of its own, because the shared one has one range.
func startKeeper(t *testing.T, cfg devcluster.Config, want baseline.Service) (*keeper, *devcluster.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	started, err := devcluster.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := started.Stop(); err != nil {
			t.Error(err)
		}
	})
	kube, err := kubernetes.NewForConfig(started.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(kube, nil)
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{Cluster: c, want: want}
	testkit.Eventually(t, time.Minute, func() error {
		if cidr := k.look(t); !cidr.Ready() || len(cidr.Ranges()) != strings.Count(cfg.ServiceCIDR, ",")+1 {
			return fmt.Errorf("servicecidr is %+v", cidr)
		}
		if service, err := k.Service(t.Context()); err != nil || service == nil {
			return fmt.Errorf("service is %v, %w", service, err)
		}
		return nil
	})
	return k, started
}

func (k *keeper) look(t *testing.T) baseline.ServiceCIDR {
	t.Helper()
	cidr, err := k.ServiceCIDR(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cidr
}

func (k *keeper) plan(t *testing.T) []baseline.Change {
	t.Helper()
	want := k.want
	want.Families = baseline.FamiliesOf(k.look(t).Ranges())
	service, err := k.Service(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return baseline.PlanService(want, service)
}

// settle carries the plan out and demands that nothing is left of it but reports.
func (k *keeper) settle(t *testing.T) []baseline.Change {
	t.Helper()
	for _, step := range k.plan(t) {
		t.Logf("%s: %s", step.Verb, step.Detail)
		if err := k.Apply(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	left := k.plan(t)
	for _, step := range baseline.Writing(left) {
		t.Errorf("left to %s: %s", step.Verb, step.Detail)
	}
	return left
}

func (k *keeper) wantFamilies(t *testing.T, families int) {
	t.Helper()
	service, err := k.Service(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if spec := service.Spec; len(spec.ClusterIPs) != families || len(spec.IPFamilies) != families || spec.ClusterIP != "10.0.0.1" {
		t.Errorf("ClusterIPs %v of families %v, want %d and the first 10.0.0.1", spec.ClusterIPs, spec.IPFamilies, families)
	}
}

// A cluster that gets its second range later gives the Service its second address then, and keeps it afterwards.
func TestFamilies_ServiceFollowsTheClusterAndIsNeverNarrowed(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	want := baseline.Service{ClusterIP: netip.MustParseAddr("10.0.0.1"), TargetPort: 6443, DualStack: true}
	k, single := startKeeper(t, devcluster.Config{DataDir: data, ServiceCIDR: "10.0.0.0/16"}, want)
	left := k.settle(t)
	if len(left) != 1 || left[0].Reason != baseline.SingleFamily {
		t.Errorf("left %v, want one report of %s", left, baseline.SingleFamily)
	}
	k.wantFamilies(t, 1)
	if err := single.Stop(); err != nil {
		t.Fatal(err)
	}

	k, _ = startKeeper(t, devcluster.Config{DataDir: data, ServiceCIDR: "10.0.0.0/16,fd00:10::/112"}, want)
	if left := k.settle(t); len(left) != 0 {
		t.Errorf("left %v, want nothing", left)
	}
	k.wantFamilies(t, 2)

	k.want.DualStack = false
	if changes := k.plan(t); len(changes) != 0 {
		t.Errorf("no longer asked for, plan = %v, want none", changes)
	}

	// Types, node ports and extra ports, as this apiserver fills them in.
	k.want.NodePort = 30443
	k.want.ExtraPorts = []baseline.Port{
		{Name: "konnectivity", Protocol: corev1.ProtocolTCP, Port: 8132, TargetPort: 8091},
		{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: 53},
	}
	k.settle(t)
	k.want.NodePort, k.want.ExtraPorts = 0, k.want.ExtraPorts[1:]
	k.settle(t)
	k.want.ExtraPorts = nil
	k.settle(t)
	k.wantFamilies(t, 2)
}
