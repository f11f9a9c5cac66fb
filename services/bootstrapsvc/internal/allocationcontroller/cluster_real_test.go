package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func newKubeCluster(t *testing.T) *KubeCluster {
	t.Helper()
	return NewKubeCluster(testkit.Kube(t), slog.New(slog.NewTextHandler(t.Output(), nil)), nil)
}

func newService(t *testing.T) allocation.Service {
	t.Helper()
	kube := testkit.Kube(t)
	service, err := kube.CoreV1().Services(testkit.Namespace(t, kube)).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "counted"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return serviceOf(service)
}

func TestStores_CurrentVersion(t *testing.T) {
	stores, err := newKubeCluster(t).Stores(t.Context())
	if want := []allocation.Store{allocation.IPAddresses, allocation.NodePorts}; err != nil || !slices.Equal(stores.Present, want) {
		t.Errorf("stores are %v, %v, want %v", stores, err, want)
	}
}

func TestStores_ByVersion(t *testing.T) {
	stable := metav1.APIResourceList{GroupVersion: "networking.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "ingresses"}}}
	beta := metav1.APIResourceList{GroupVersion: "networking.k8s.io/v1beta1", APIResources: []metav1.APIResource{{Name: "ipaddresses"}}}
	withAddresses := metav1.APIResourceList{GroupVersion: "networking.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "ipaddresses"}}}
	const objects, ports, first, second = allocation.IPAddresses, allocation.NodePorts, allocation.ClusterIPs, allocation.SecondaryClusterIPs
	cases := map[string]struct {
		minor     string
		resources []*metav1.APIResourceList
		want      []allocation.Store
	}{
		"only bitmaps": {minor: "30", resources: []*metav1.APIResourceList{&stable}, want: []allocation.Store{ports, first, second}},
		// 1.33 writes bitmaps beside the objects. Objects of a beta version are not audited.
		"objects are beta": {minor: "32+", resources: []*metav1.APIResourceList{&stable, &beta}, want: []allocation.Store{ports, first, second}},
		"both":             {minor: "33", resources: []*metav1.APIResourceList{&withAddresses}, want: []allocation.Store{objects, ports, first, second}},
		"only objects":     {minor: "34+", resources: []*metav1.APIResourceList{&withAddresses}, want: []allocation.Store{objects, ports}},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			kube := fake.NewClientset()
			discovery, ok := kube.Discovery().(*fakediscovery.FakeDiscovery)
			if !ok {
				t.Fatalf("discovery is %T", kube.Discovery())
			}
			discovery.FakedServerVersion, discovery.Resources = &version.Info{Major: "1", Minor: test.minor}, test.resources
			stores, err := NewKubeCluster(kube, slog.New(slog.DiscardHandler), nil).Stores(t.Context())
			if err != nil || !slices.Equal(stores.Present, test.want) || (stores.Problems[objects] != "") != (name == "objects are beta") {
				t.Errorf("stores are %v, %v, want %v", stores, err, test.want)
			}
		})
	}
}

func TestReads_ReturnCurrentObjects(t *testing.T) {
	k, service := newKubeCluster(t), newService(t)
	if len(service.ClusterIPs) != 1 || len(service.Ports) != 1 || service.Ports[0].Number == 0 {
		t.Fatalf("service is %+v", service)
	}
	got, err := k.Service(t.Context(), service.Key)
	if err != nil || got == nil || got.UID != service.UID {
		t.Errorf("service is %+v, %v", got, err)
	}
	if got, err := k.Service(t.Context(), allocation.Key{Namespace: "default", Name: "none"}); got != nil || err != nil {
		t.Errorf("a service that does not exist is %+v, %v", got, err)
	}
	all, err := k.Services(t.Context())
	if err != nil || !slices.ContainsFunc(all, func(s allocation.Service) bool { return s.UID == service.UID }) {
		t.Errorf("services are %+v, %v", all, err)
	}
	address, err := k.IPAddress(t.Context(), service.ClusterIPs[0])
	if err != nil || address == nil || address.Parent != allocation.ServiceParent(service.Key) ||
		address.ManagedBy != allocation.AllocatorName || address.Family != allocation.FamilyIPv4 {
		t.Errorf("address is %+v, %v", address, err)
	}
	if address, err := k.IPAddress(t.Context(), "10.0.255.250"); address != nil || err != nil {
		t.Errorf("an address that does not exist is %+v, %v", address, err)
	}
}

// The test has no kube-controller-manager, which writes the condition Ready.
func TestServiceCIDR_IsReadyIfKubeAPIServerAllocatesFromIt(t *testing.T) {
	k, kube, ctx := newKubeCluster(t), testkit.Kube(t), t.Context()
	cidrs := kube.NetworkingV1().ServiceCIDRs()
	const name = "without-condition"
	_, err := cidrs.Create(ctx, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.203.0.0/28"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cidrs.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}) })
	services := kube.CoreV1().Services(testkit.Namespace(t, kube))
	allocates := func(last int) error {
		service, err := services.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "in-range-"},
			Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.203.0.%d", last), Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		if err == nil {
			t.Cleanup(func() { _ = services.Delete(context.WithoutCancel(ctx), service.Name, metav1.DeleteOptions{}) })
		}
		return err
	}
	ready := func() bool {
		t.Helper()
		all, err := k.ServiceCIDRs(ctx)
		at := slices.IndexFunc(all, func(c allocation.CIDR) bool { return c.Name == name })
		if err != nil || at < 0 {
			t.Fatalf("ServiceCIDRs are %+v, %v", all, err)
		}
		return all[at].Ready
	}
	testkit.Eventually(t, time.Minute, func() error { return allocates(5) })
	if !ready() {
		t.Error("a ServiceCIDR without a condition is not ready, and kube-apiserver allocates from it")
	}
	for _, status := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown} {
		stored, err := cidrs.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stored.Status.Conditions = []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: status, Reason: "Test", LastTransitionTime: metav1.Now(),
		}}
		if _, err := cidrs.UpdateStatus(ctx, stored, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		next := 6
		testkit.Eventually(t, time.Minute, func() error {
			if next++; allocates(next%14+1) == nil {
				return fmt.Errorf("kube-apiserver allocates although the condition is %s", status)
			}
			return nil
		})
		if ready() {
			t.Errorf("a ServiceCIDR whose condition is %s is ready", status)
		}
	}
}

func TestIdentity_IsTheServiceOfTheAPI(t *testing.T) {
	k := newKubeCluster(t)
	service, err := testkit.Kube(t).CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := k.Identity(t.Context())
	if err != nil || got == nil || got.UID != string(service.UID) || got.ResourceVersion != service.ResourceVersion {
		t.Errorf("identity is %+v, %v, want %s at %s", got, err, service.UID, service.ResourceVersion)
	}
}

func TestWrites_GuardsHold(t *testing.T) {
	k, service := newKubeCluster(t), newService(t)
	stored := func() allocation.IPAddress {
		t.Helper()
		address, err := k.IPAddress(t.Context(), service.ClusterIPs[0])
		if err != nil || address == nil {
			t.Fatalf("address is %+v, %v", address, err)
		}
		return *address
	}
	guard := func(a allocation.IPAddress) allocation.Guard {
		return allocation.Guard{UID: a.UID, ResourceVersion: a.ResourceVersion}
	}
	want := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s = %v, want %v", what, err, want)
		}
	}
	old := stored()
	want("create of an existing object", k.Create(t.Context(), old), guarded.ErrConflict)
	changed := old
	changed.Family = "IPv5"
	want("relabel", k.Relabel(t.Context(), changed, guard(old)), nil)
	want("relabel of an old version", k.Relabel(t.Context(), old, guard(old)), guarded.ErrConflict)
	want("delete of an old version", k.Delete(t.Context(), old.Name, guard(old)), guarded.ErrConflict)
	want("delete without a guard", k.Delete(t.Context(), old.Name, allocation.Guard{}), errUnguarded)
	stranger := guard(stored())
	stranger.UID = "11111111-2222-3333-4444-555555555555"
	want("delete of another object", k.Delete(t.Context(), old.Name, stranger), guarded.ErrConflict)
	if got := stored(); got.Family != "IPv5" || got.Parent != old.Parent {
		t.Errorf("address is %+v after rejected writes", got)
	}
	want("delete", k.Delete(t.Context(), old.Name, guard(stored())), nil)
	want("delete of what is gone", k.Delete(t.Context(), old.Name, guard(old)), guarded.ErrConflict)
	want("create", k.Create(t.Context(), old), nil)
	if got := stored(); got.Parent != old.Parent || got.Family != old.Family || got.ManagedBy != old.ManagedBy {
		t.Errorf("address is %+v, want it as %+v", got, old)
	}
	invalid := old
	invalid.Name = "no-address"
	if err := k.Create(t.Context(), invalid); err == nil || errors.Is(err, guarded.ErrConflict) || errors.Is(err, guarded.ErrUnavailable) {
		t.Errorf("create of an invalid object = %v", err)
	}
}

func TestWrites_FailWithoutATerm(t *testing.T) {
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(testkit.Cluster(t).RESTConfig()))
	if err != nil {
		t.Fatal(err)
	}
	k := NewKubeCluster(kube, slog.New(slog.DiscardHandler), nil)
	address := allocation.IPAddress{Name: "10.0.255.251", Parent: allocation.ServiceParent(allocation.Key{Namespace: "default", Name: "none"})}
	if err := k.Create(t.Context(), address); !errors.Is(err, term.ErrNone) {
		t.Errorf("create without a term = %v, want %v", err, term.ErrNone)
	}
	_, ctx, end := termtest.NewTerm(0, 1)
	end()
	if err := k.Create(context.WithoutCancel(ctx), address); !errors.Is(err, term.ErrEnded) {
		t.Errorf("create after the term = %v, want %v", err, term.ErrEnded)
	}
}

func TestReads_FailWithUnavailableIfKubeAPIServerDoesNotAnswer(t *testing.T) {
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: "https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	k := NewKubeCluster(kube, slog.New(slog.DiscardHandler), nil)
	if _, err := k.Services(t.Context()); !errors.Is(err, guarded.ErrUnavailable) {
		t.Errorf("services = %v, want %v", err, guarded.ErrUnavailable)
	}
	if _, err := k.Stores(t.Context()); !errors.Is(err, guarded.ErrUnavailable) {
		t.Errorf("stores = %v, want %v", err, guarded.ErrUnavailable)
	}
}

// eventRecorder is an ObjectHandler that records what it receives.
type eventRecorder struct {
	mu       sync.Mutex // guards the fields below
	listed   map[Kind]bool
	services map[string]bool
	failing  map[Kind]error
}

func (s *eventRecorder) OnChange(change ObjectChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed[change.Kind] = s.listed[change.Kind] || change.List
	for _, service := range change.Put.Services {
		s.services[service.String()] = true
	}
	for _, gone := range change.Deleted {
		delete(s.services, gone.String())
	}
}

func (*eventRecorder) OnHeard(Kind, string) {}

func (s *eventRecorder) OnError(kind Kind, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing[kind] = err
}

// watch starts a watch of all kinds. The returned function waits until it has listed all, and has
// or lacks a Service.
func watch(t *testing.T, k *KubeCluster) (want func(service allocation.Service, is bool)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	handler := &eventRecorder{listed: map[Kind]bool{}, services: map[string]bool{}, failing: map[Kind]error{}}
	watching.Go(func() { k.Watch(ctx, []Kind{KindServices, KindIPAddresses, KindServiceCIDRs}, handler) })
	t.Cleanup(watching.Wait)
	t.Cleanup(cancel)
	return func(service allocation.Service, is bool) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() error {
			handler.mu.Lock()
			defer handler.mu.Unlock()
			if !handler.listed[KindServices] || !handler.listed[KindIPAddresses] || !handler.listed[KindServiceCIDRs] || handler.services[service.String()] != is {
				return fmt.Errorf("listed: %v, services: %v, failing: %v", handler.listed, handler.services, handler.failing)
			}
			return nil
		})
	}
}

func TestWatch_ListsAndThenReportsChanges(t *testing.T) {
	k, first := newKubeCluster(t), newService(t)
	want := watch(t, k)
	want(first, true)
	second := newService(t)
	want(second, true)
	if err := testkit.Kube(t).CoreV1().Services(second.Namespace).Delete(t.Context(), second.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want(second, false)
	want(first, true)
}

func TestWatch_GoesOnAfterItsConnectionsDied(t *testing.T) {
	proxy := faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())
	kube, err := kubernetes.NewForConfig(proxy.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	k := NewKubeCluster(kube, slog.New(slog.NewTextHandler(t.Output(), nil)), nil)
	k.silenceLimit = 2 * time.Second
	want := watch(t, k)
	want(newService(t), true)
	defer proxy.HoldOpenWatches(faultproxy.Resource("services", "watch"))()
	want(newService(t), true)
}
