package baselinecontroller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func newObjects(t *testing.T) *KubeObjects {
	t.Helper()
	c := NewKubeObjects(testkit.Kube(t), prometheus.NewRegistry())
	return c
}

func sliceIn(namespace string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "kubernetes", Namespace: namespace},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
}

func (o *KubeObjects) wantApply(t *testing.T, verb planned.Verb, object baseline.Object, want error) {
	t.Helper()
	if err := o.Apply(t.Context(), baseline.Change{Verb: verb, Object: object}); !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", verb, err, want)
	}
}

func TestWatchEndpointSlice_ReportsEveryWriter(t *testing.T) {
	kube := testkit.Kube(t)
	c := newObjects(t)
	slices := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	_ = slices.Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}) // what an earlier test left
	ctx, cancel := context.WithCancel(t.Context())
	news, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		c.WatchEndpointSlice(ctx, func() { news <- struct{}{} })
	}()
	wantNews := func(of string) {
		t.Helper()
		select {
		case <-news:
		case <-time.After(10 * time.Second):
			t.Fatalf("no call for %s", of)
		}
	}
	wantNews("the beginning")
	if _, err := slices.Create(t.Context(), sliceIn(metav1.NamespaceDefault), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantNews("a new slice")
	if err := slices.Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantNews("a slice that is gone")
	cancel()
	<-ended
}

func TestApply_GuardsHold(t *testing.T) {
	kube, registry := testkit.Kube(t), prometheus.NewRegistry()
	c := NewKubeObjects(kube, registry)
	namespace := testkit.Namespace(t, kube)
	slices := kube.DiscoveryV1().EndpointSlices(namespace)
	stored := func() *discoveryv1.EndpointSlice {
		t.Helper()
		slice, err := slices.Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slice
	}

	c.wantApply(t, planned.Create, sliceIn(namespace), nil)
	c.wantApply(t, planned.Create, sliceIn(namespace), guarded.ErrConflict)
	c.wantApply(t, planned.Update, sliceIn(namespace), errUnguarded)
	c.wantApply(t, planned.Delete, sliceIn(namespace), errUnguarded)

	old := stored()
	labelled := old.DeepCopy()
	labelled.Labels = map[string]string{"team": "net"}
	c.wantApply(t, planned.Update, labelled, nil)
	c.wantApply(t, planned.Update, old, guarded.ErrConflict)
	c.wantApply(t, planned.Delete, old, guarded.ErrConflict)
	stranger := stored()
	stranger.UID = "11111111-2222-3333-4444-555555555555"
	c.wantApply(t, planned.Delete, stranger, guarded.ErrConflict)
	if got := stored().Labels["team"]; got != "net" {
		t.Fatalf("label = %q after rejected writes, want net", got)
	}
	last := stored()
	c.wantApply(t, planned.Delete, last, nil)
	c.wantApply(t, planned.Delete, last, guarded.ErrConflict)
	c.wantApply(t, planned.Update, last, guarded.ErrConflict)
	c.wantApply(t, planned.Report, last, nil)

	want := map[string]float64{
		"EndpointSlice create conflict": 1, "EndpointSlice create ok": 1,
		"EndpointSlice delete conflict": 3, "EndpointSlice delete error": 1, "EndpointSlice delete ok": 1,
		"EndpointSlice update conflict": 2, "EndpointSlice update error": 1, "EndpointSlice update ok": 1,
	}
	if diff := cmp.Diff(want, counted(t, registry)); diff != "" {
		t.Errorf("trivet_bootstrap_writes_total (-want +got):\n%s", diff)
	}
}

// counted returns the counters of the registry's only family by their label values.
func counted(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("gathered %v, %v, want one family", families, err)
	}
	counters := map[string]float64{}
	for _, metric := range families[0].GetMetric() {
		var labels []string
		for _, label := range metric.GetLabel() {
			labels = append(labels, label.GetValue())
		}
		// Gathered labels are ordered by name: kind, result, verb.
		counters[labels[0]+" "+labels[2]+" "+labels[1]] = metric.GetCounter().GetValue()
	}
	return counters
}

func TestApply_InvalidObjectIsNeitherConflictNorUnavailable(t *testing.T) {
	c, kube := newObjects(t), testkit.Kube(t)
	invalid := sliceIn(testkit.Namespace(t, kube))
	invalid.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}}
	err := c.Apply(t.Context(), baseline.Change{Verb: planned.Create, Object: invalid})
	if err == nil || errors.Is(err, guarded.ErrConflict) || errors.Is(err, guarded.ErrUnavailable) {
		t.Errorf("create of an invalid slice = %v", err)
	}
}

func TestApply_WritesNothingWithoutATerm(t *testing.T) {
	kube, err := kubernetes.NewForConfig(kubeconn.Fence(testkit.Cluster(t).RESTConfig()))
	if err != nil {
		t.Fatal(err)
	}
	c := NewKubeObjects(kube, nil)
	namespace := testkit.Namespace(t, testkit.Kube(t))
	c.wantApply(t, planned.Create, sliceIn(namespace), term.ErrNone)

	_, ctx, end := termtest.NewTerm(0, 1)
	defer end()
	if err := c.Apply(ctx, baseline.Change{Verb: planned.Create, Object: sliceIn(namespace)}); err != nil {
		t.Errorf("create under a term = %v", err)
	}
	end()
	err = c.Apply(context.WithoutCancel(ctx), baseline.Change{Verb: planned.Create, Object: sliceIn(namespace)})
	if !errors.Is(err, term.ErrEnded) {
		t.Errorf("create after the term = %v, want %v", err, term.ErrEnded)
	}
}

func TestReads_MissingObjectsAreNil(t *testing.T) {
	c := newObjects(t)
	ctx := t.Context()
	namespaces, err := c.Namespaces(ctx, []string{"default", "kube-system", "there-is-none"})
	if err != nil || len(namespaces) != 2 {
		t.Errorf("namespaces = %d, %v, want 2", len(namespaces), err)
	}
	cidr, err := c.ServiceCIDR(ctx)
	if want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}; err != nil || !cidr.Served || !slices.Equal(cidr.Ranges(), want) {
		t.Errorf("servicecidr = %+v, %v, want %s", cidr, err, want)
	}
	endpoints, err := c.Endpoints(ctx)
	if endpoints != nil || err != nil {
		t.Errorf("endpoints = %v, %v, want none", endpoints, err)
	}
	slices, err := c.EndpointSlices(ctx)
	if len(slices) != 0 || err != nil {
		t.Errorf("slices = %v, %v, want none", slices, err)
	}
}

func TestReads_SlicesWithoutTheirLabelAreFoundByName(t *testing.T) {
	c, client := newObjects(t), testkit.Kube(t).DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	for _, name := range []string{"kubernetes", "kubernetes-ipv6", "kubernetes-x"} {
		unlabelled := sliceIn(metav1.NamespaceDefault)
		unlabelled.Name = name
		if _, err := client.Create(t.Context(), unlabelled, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := client.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	found, err := c.EndpointSlices(t.Context())
	var names []string
	for _, slice := range found {
		names = append(names, slice.Name)
	}
	if want := []string{"kubernetes", "kubernetes-ipv6"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("slices = %v, %v, want %v", names, err, want)
	}
}

// The bodies are the answer of a kube-apiserver 1.32 about a kind of 1.33, and that of a newer one
// about a missing object.
func TestServiceCIDR_KindThatIsNotServedIsNoMissingObject(t *testing.T) {
	for body, served := range map[string]bool{
		"404 page not found\n": false,
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"servicecidrs.networking.k8s.io ` +
			`\"kubernetes\" not found","reason":"NotFound","details":{"name":"kubernetes"},"code":404}`: true,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if served {
				w.Header().Set("Content-Type", "application/json")
			} else {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			}
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, body)
		}))
		t.Cleanup(server.Close)
		kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		c := NewKubeObjects(kube, nil)
		if got, err := c.ServiceCIDR(t.Context()); err != nil || got.Served != served || got.Object != nil {
			t.Errorf("ServiceCIDR after %q = %+v, %v; want served = %t and no object", body, got, err, served)
		}
	}
}

func TestReads_APIServerThatDoesNotAnswerIsUnavailable(t *testing.T) {
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: "https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	c := NewKubeObjects(kube, nil)
	if _, err := c.Service(t.Context()); !errors.Is(err, guarded.ErrUnavailable) {
		t.Errorf("service = %v, want %v", err, guarded.ErrUnavailable)
	}
	err = c.Apply(t.Context(), baseline.Change{
		Verb: planned.Create, Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
	})
	if !errors.Is(err, guarded.ErrUnavailable) {
		t.Errorf("create = %v, want %v", err, guarded.ErrUnavailable)
	}
}
