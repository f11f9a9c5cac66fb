package bootstrapsvc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	"github.com/trivet-dev/trivet/test/lab/bootstraptest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// objectEditor damages objects as an administrator could.
type objectEditor struct {
	t    *testing.T
	kube kubernetes.Interface
}

// editor has the methods that the typed clients share.
type editor[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Update(ctx context.Context, object T, opts metav1.UpdateOptions) (T, error)
}

func edit[T any](t *testing.T, in editor[T], how func(T)) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		object, err := in.Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		how(object)
		_, err = in.Update(t.Context(), object, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatalf("damage: %v", err)
	}
}

func (v objectEditor) service(how func(*corev1.Service)) {
	edit(v.t, v.kube.CoreV1().Services("default"), how)
}

func (v objectEditor) endpoints(how func(*corev1.Endpoints)) {
	edit(v.t, v.kube.CoreV1().Endpoints("default"), how)
}

func (v objectEditor) slice(how func(*discoveryv1.EndpointSlice)) {
	edit(v.t, v.kube.DiscoveryV1().EndpointSlices("default"), how)
}

func (v objectEditor) remove(drop func(context.Context, string, metav1.DeleteOptions) error) {
	v.t.Helper()
	if err := drop(v.t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		v.t.Fatalf("damage: %v", err)
	}
}

func TestReal_DamageIsRepairedOnRequest(t *testing.T) {
	r := startReplica(t, "10.99.4.1")
	client := r.client(t)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.4.1"))
	testkit.Eventually(t, bootstraptest.Soon, settled(t, client))
	v := objectEditor{t: t, kube: testkit.Kube(t)}

	cases := map[string]func(){
		"service labels":    func() { v.service(func(s *corev1.Service) { s.Labels = map[string]string{"provider": "me"} }) },
		"service ports":     func() { v.service(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(1) }) },
		"another port":      func() { v.service(addPort) },
		"service selector":  func() { v.service(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "x"} }) },
		"service affinity":  func() { v.service(func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }) },
		"type NodePort":     func() { v.service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }) },
		"type LoadBalancer": func() { v.service(toLoadBalancer) },
		"type ExternalName": func() { v.service(toExternalName) },
		"service deleted":   func() { v.remove(v.kube.CoreV1().Services("default").Delete) },
		"endpoints address": func() { v.endpoints(func(e *corev1.Endpoints) { e.Subsets[0].Addresses[0].IP = "192.0.2.1" }) },
		"endpoints port":    func() { v.endpoints(func(e *corev1.Endpoints) { e.Subsets[0].Ports[0].Port = 1 }) },
		"endpoints emptied": func() { v.endpoints(func(e *corev1.Endpoints) { e.Subsets = nil }) },
		"endpoints label":   func() { v.endpoints(func(e *corev1.Endpoints) { e.Labels = nil }) },
		"endpoints deleted": func() { v.remove(v.kube.CoreV1().Endpoints("default").Delete) },
		"slice emptied":     func() { v.slice(func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }) },
		"slice ports":       func() { v.slice(func(s *discoveryv1.EndpointSlice) { s.Ports = nil }) },
		"slice label":       func() { v.slice(func(s *discoveryv1.EndpointSlice) { s.Labels = nil }) },
		"slice deleted":     func() { v.remove(v.kube.DiscoveryV1().EndpointSlices("default").Delete) },
		"slice of IPv6":     v.replaceSlice,
		"both at the same time": func() {
			v.remove(v.kube.CoreV1().Endpoints("default").Delete)
			v.remove(v.kube.DiscoveryV1().EndpointSlices("default").Delete)
		},
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			damage()
			answer, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{})
			if err != nil {
				t.Fatal(err)
			}
			// A loop may have been faster, or kube-apiserver with its own Service.
			t.Logf("repairs: %v", answer.GetPlan().GetChanges())
			if strings.HasPrefix(name, "type ") { // what releases ports waits until an operator applies the plan
				applyPlan(t, client)
			}
			for _, check := range []func() error{settled(t, client), published(t, client, "10.99.4.1"), v.serviceIsWhole} {
				if err := check(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// applyPlan applies the plan that the service shows, if there is one.
func applyPlan(t *testing.T, client *clients) {
	t.Helper()
	shown, err := client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	plan := shown.GetBaseline().GetPlan()
	if len(plan.GetChanges()) == 0 {
		return
	}
	if _, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{Etag: plan.GetEtag()}); err != nil {
		t.Fatal(err)
	}
}

func addPort(s *corev1.Service) {
	s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 444, TargetPort: intstr.FromInt32(1)})
}

func toLoadBalancer(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
}

func toExternalName(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeExternalName
	s.Spec.ExternalName = "elsewhere.example"
}

// replaceSlice replaces the slice by one of the wrong address type.
func (v objectEditor) replaceSlice() {
	v.t.Helper()
	v.remove(v.kube.DiscoveryV1().EndpointSlices("default").Delete)
	_, err := v.kube.DiscoveryV1().EndpointSlices("default").Create(v.t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv6,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) { // the loop may have been faster
		v.t.Fatalf("damage: %v", err)
	}
}

func (v objectEditor) serviceIsWhole() error {
	service, err := v.kube.CoreV1().Services("default").Get(v.t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	spec := service.Spec
	if spec.ClusterIP != "10.0.0.1" || spec.Type != corev1.ServiceTypeClusterIP || len(spec.Ports) != 1 ||
		spec.Ports[0].Port != 443 || spec.Ports[0].TargetPort.IntValue() != 6443 || spec.Ports[0].NodePort != 0 {
		return fmt.Errorf("service is %+v", spec)
	}
	return nil
}

// settled returns an error while changes are planned.
func settled(t *testing.T, client *clients) func() error {
	return func() error {
		answer, err := client.GetBaseline(t.Context(), &bootstrapv1.GetBaselineRequest{})
		if err != nil {
			return err
		}
		if changes := answer.GetBaseline().GetPlan().GetChanges(); len(changes) != 0 {
			return fmt.Errorf("changes left: %v", changes)
		}
		return nil
	}
}

func TestReal_DriftIsRepairedWithoutARequest(t *testing.T) {
	r := startReplica(t, "10.99.5.1")
	client := r.client(t)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.5.1"))
	testkit.Eventually(t, bootstraptest.Soon, settled(t, client))
	v := objectEditor{t: t, kube: testkit.Kube(t)}
	v.service(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(1) })
	v.endpoints(func(e *corev1.Endpoints) { e.Subsets[0].Addresses[0].IP = "192.0.2.1" })
	v.remove(v.kube.DiscoveryV1().EndpointSlices("default").Delete)
	testkit.Eventually(t, bootstraptest.Soon, settled(t, client))
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.5.1"))
	if err := v.serviceIsWhole(); err != nil {
		t.Error(err)
	}
}

func TestReal_NamespaceIsCreatedAgainOnceItHasGone(t *testing.T) {
	r := startReplica(t, "10.99.6.1")
	client := r.client(t)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.6.1"))
	testkit.Eventually(t, bootstraptest.Soon, settled(t, client))
	namespaces := testkit.Kube(t).CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), "kube-node-lease", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := finds(t, client, "NAMESPACE_TERMINATING")(); err != nil {
		t.Error(err)
	}
	// The namespace controller would do this.
	going, err := namespaces.Get(t.Context(), "kube-node-lease", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	going.Spec.Finalizers = nil
	if _, err := namespaces.Finalize(t.Context(), going, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ReconcileBaseline(t.Context(), &bootstrapv1.ReconcileBaselineRequest{}); err != nil {
		t.Fatal(err)
	}
	fresh, err := namespaces.Get(t.Context(), "kube-node-lease", metav1.GetOptions{})
	if err != nil || fresh.UID == going.UID || fresh.Status.Phase != corev1.NamespaceActive {
		t.Errorf("kube-node-lease = %v, %v, want a new one", fresh, err)
	}
}

func TestReal_AnotherWriterIsNeverOverwritten(t *testing.T) {
	r := startReplica(t, "10.99.7.1")
	client := r.client(t)
	testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.7.1"))
	v := objectEditor{t: t, kube: testkit.Kube(t)}

	noisy, quietAgain := make(chan struct{}), make(chan struct{})
	const edits = 100
	go func() {
		defer close(quietAgain)
		for i := range edits {
			v.slice(func(s *discoveryv1.EndpointSlice) {
				if s.Annotations == nil {
					s.Annotations = map[string]string{}
				}
				s.Annotations[fmt.Sprintf("example.com/note-%d", i)] = "here"
			})
			if i == 0 {
				close(noisy)
			}
		}
	}()
	<-noisy
	for i := range 5 {
		other := startReplica(t, fmt.Sprintf("10.99.7.%d", 10+i))
		testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.7.1", fmt.Sprintf("10.99.7.%d", 10+i)))
		other.End(t)
		testkit.Eventually(t, bootstraptest.Soon, published(t, client, "10.99.7.1"))
	}
	select {
	case <-quietAgain:
	case <-time.After(time.Minute):
		t.Fatal("the other writer never finished")
	}
	slice, err := v.kube.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(slice.Annotations); got != edits {
		t.Errorf("%d of the other writer's %d annotations are left", got, edits)
	}
	testkit.Eventually(t, bootstraptest.Soon, settled(t, client))
}
