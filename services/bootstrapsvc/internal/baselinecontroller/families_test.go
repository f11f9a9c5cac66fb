package baselinecontroller

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// serviceFixture plans default/kubernetes on a real kube-apiserver, as the controller does.
type serviceFixture struct {
	*KubeObjects
	want baseline.Service
}

// startServiceFixture starts a control plane of its own, because the shared one has one range.
func startServiceFixture(t *testing.T, cfg devcluster.Config, want baseline.Service) (*serviceFixture, *devcluster.Cluster) {
	t.Helper()
	started := testkit.OwnCluster(t, cfg)
	kube, err := kubernetes.NewForConfig(started.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	c := NewKubeObjects(kube, nil)
	f := &serviceFixture{KubeObjects: c, want: want}
	testkit.Eventually(t, time.Minute, func() error {
		if cidr := f.look(t); !cidr.Ready() || len(cidr.Ranges()) != strings.Count(cfg.ServiceCIDR, ",")+1 {
			return fmt.Errorf("servicecidr is %+v", cidr)
		}
		if service, err := f.Service(t.Context()); err != nil || service == nil {
			return fmt.Errorf("service is %v, %w", service, err)
		}
		return nil
	})
	return f, started
}

func (f *serviceFixture) look(t *testing.T) baseline.ServiceCIDR {
	t.Helper()
	cidr, err := f.ServiceCIDR(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cidr
}

func (f *serviceFixture) plan(t *testing.T) []baseline.Change {
	t.Helper()
	want := f.want
	want.Families = baseline.FamiliesOf(f.look(t).Ranges())
	service, err := f.Service(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return baseline.PlanService(want, service)
}

// settle applies the plan and fails if writes are left.
func (f *serviceFixture) settle(t *testing.T) []baseline.Change {
	t.Helper()
	for _, step := range f.plan(t) {
		t.Logf("%s: %s", step.Verb, step.Detail)
		if err := f.Apply(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	left := f.plan(t)
	for _, step := range baseline.Writes(left) {
		t.Errorf("still planned: %s: %s", step.Verb, step.Detail)
	}
	return left
}

func (f *serviceFixture) wantFamilies(t *testing.T, families int) {
	t.Helper()
	service, err := f.Service(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if spec := service.Spec; len(spec.ClusterIPs) != families || len(spec.IPFamilies) != families || spec.ClusterIP != "10.0.0.1" {
		t.Errorf("ClusterIPs %v of families %v, want %d and the first 10.0.0.1", spec.ClusterIPs, spec.IPFamilies, families)
	}
}

// kube-apiserver allocates nothing from a ServiceCIDR that is being deleted. Its successor is
// unknown without a flag.
func TestService_RangeIsReplaced(t *testing.T) {
	t.Parallel()
	old := baseline.Service{ClusterIP: netip.MustParseAddr("10.0.0.1"), TargetPort: 6443}
	f, started := startServiceFixture(t, devcluster.Config{ServiceCIDR: "10.0.0.0/16"}, old)
	kube, err := kubernetes.NewForConfig(started.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	cidrs, ctx := kube.NetworkingV1().ServiceCIDRs(), t.Context()
	next := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "next"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.50.0.0/16"}}}
	if _, err := cidrs.Create(ctx, next, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// kube-controller-manager would set a finalizer.
	held := []byte(`{"metadata":{"finalizers":["networking.k8s.io/service-cidr-finalizer"]}}`)
	if _, err := cidrs.Patch(ctx, "kubernetes", types.MergePatchType, held, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cidrs.Delete(ctx, "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c := New(Config{Service: baseline.Service{TargetPort: 6443}}, Deps{Objects: f.KubeObjects, Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil)})
	services := kube.CoreV1().Services("default")
	replaced := baseline.Service{ClusterIP: netip.MustParseAddr("10.50.0.1"), TargetPort: 6443}
	testkit.Eventually(t, time.Minute, func() error {
		if err := services.Delete(ctx, "kubernetes", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		// kube-apiserver may have created the old one again before it knew that the range goes.
		if err := f.Apply(ctx, baseline.PlanService(old, nil)[0]); err == nil || errors.Is(err, guarded.ErrConflict) {
			return fmt.Errorf("the old address was allocated: %w", err)
		}
		return f.Apply(ctx, baseline.PlanService(replaced, nil)[0])
	})
	found, err := c.ObserveService(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range found.Changes {
		if change.Reason != baseline.CIDRTerminating {
			t.Errorf("planned %s %s: %s", change.Verb, change.Reason, change.Detail)
		}
	}
	if found.ClusterIP != replaced.ClusterIP || found.CIDR.Ready() {
		t.Errorf("address is %s, and the old range is ready: %t", found.ClusterIP, found.CIDR.Ready())
	}
}

// A cluster may get its second range later. The Service then gets its second address, and keeps it.
func TestFamilies_ServiceGainsFamiliesAndNeverLosesOne(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	want := baseline.Service{ClusterIP: netip.MustParseAddr("10.0.0.1"), TargetPort: 6443, DualStack: true}
	f, single := startServiceFixture(t, devcluster.Config{DataDir: data, ServiceCIDR: "10.0.0.0/16"}, want)
	left := f.settle(t)
	if len(left) != 1 || left[0].Reason != baseline.SingleFamily {
		t.Errorf("left %v, want one report of %s", left, baseline.SingleFamily)
	}
	f.wantFamilies(t, 1)
	if err := single.Stop(); err != nil {
		t.Fatal(err)
	}

	f, _ = startServiceFixture(t, devcluster.Config{DataDir: data, ServiceCIDR: "10.0.0.0/16,fd00:10::/112"}, want)
	if left := f.settle(t); len(left) != 0 {
		t.Errorf("left %v, want nothing", left)
	}
	f.wantFamilies(t, 2)

	f.want.DualStack = false
	if changes := f.plan(t); len(changes) != 0 {
		t.Errorf("plan without dual stack = %v, want none", changes)
	}

	// Types, node ports and extra ports, as this apiserver fills them in.
	f.want.NodePort = 30443
	f.want.ExtraPorts = []baseline.Port{
		{Name: "konnectivity", Protocol: corev1.ProtocolTCP, Port: 8132, TargetPort: 8091},
		{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: 53},
	}
	f.settle(t)
	f.want.NodePort, f.want.ExtraPorts = 0, f.want.ExtraPorts[1:]
	f.settle(t)
	f.want.ExtraPorts = nil
	f.settle(t)
	f.wantFamilies(t, 2)
}
