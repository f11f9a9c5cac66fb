package slicecontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func auto(service *corev1.Service) {
	service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
}

func prefer(how string) func(*corev1.Service) {
	return func(service *corev1.Service) { service.Spec.TrafficDistribution = &how }
}

func TestMetrics_CountUnderUpstreamsNames(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	metrics, err := NewMetrics(registry, func() Sizes {
		return Sizes{
			Endpoints:  150,
			Slices:     3,
			Ideal:      2,
			Topologies: map[string]int{"Auto": 1, "PreferClose": 4},
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	written := []pack.Change{{Verb: pack.Create, Added: 3}, {Verb: pack.Update, Added: 1, Removed: 2}, {Verb: pack.Delete, Removed: 5}}
	metrics.Passed(Pass{Service: slicetest.Service("web", auto), Written: written})
	metrics.Passed(Pass{Service: slicetest.Service("web", prefer("PreferClose")), Err: fmt.Errorf("update: %w", kube.ErrConflict)})
	metrics.Passed(Pass{Service: slicetest.Service("web"), Err: errors.New("busy")})
	want := map[string]float64{
		"changes create":                                       1,
		"changes delete":                                       1,
		"changes update":                                       1,
		"desired_endpoint_slices":                              2,
		"endpoints_added_per_sync":                             4,
		"endpoints_desired":                                    150,
		"endpoints_removed_per_sync":                           7,
		"endpointslices_changed_per_sync Auto ":                3,
		"endpointslices_changed_per_sync Disabled ":            0,
		"endpointslices_changed_per_sync Disabled PreferClose": 0,
		"num_endpoint_slices":                                  3,
		"services_count_by_traffic_distribution PreferClose":   4,
		"syncs error":                                          1,
		"syncs stale":                                          1,
		"syncs success":                                        1,
	}
	if diff := gocmp.Diff(want, gathered(t, registry)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// gathered gives each metric by name and label values: its value, or the sum of a
// histogram.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name, ok := strings.CutPrefix(family.GetName(), "endpoint_slice_controller_")
			if !ok {
				t.Errorf("%s is no name of upstream's", family.GetName())
			}
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			values[name] = metric.GetHistogram().GetSampleSum() + metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return values
}

func verdict(problem string) []pack.FamilyHints {
	return []pack.FamilyHints{{
		AddressType: discoveryv1.AddressTypeIPv4,
		Verdict:     hints.Verdict{Hinted: problem == "", Problem: problem},
	}}
}

func TestEvents_TellOfChangesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		events := NewEvents(slicetest.Clientset{Interface: client}.Events())
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { returned <- events.Run(ctx) }()
		synctest.Wait()
		wants, not := slicetest.Service("web", auto), slicetest.Service("web")
		for _, step := range []struct {
			name string
			do   func()
			want []string
		}{
			{name: "nothing to tell", do: func() { events.Passed(Pass{Service: not}) }},
			{
				name: "hints",
				do:   func() { events.Passed(Pass{Service: wants, Topology: verdict("")}) },
				want: []string{"Normal TopologyAwareHintsEnabled: endpoints have hints (IPv4)"},
			},
			{name: "hints still", do: func() { events.Passed(Pass{Service: wants, Topology: verdict("")}) }},
			{
				name: "no hints",
				do:   func() { events.Passed(Pass{Service: wants, Topology: verdict("one zone")}) },
				want: []string{"Warning TopologyAwareHintsDisabled: endpoints have no hints (IPv4): one zone"},
			},
			{name: "no hints still", do: func() { events.Passed(Pass{Service: wants, Topology: verdict("one zone")}) }},
			{
				name: "hints again",
				do:   func() { events.Passed(Pass{Service: wants, Topology: verdict("")}) },
				want: []string{"Normal TopologyAwareHintsEnabled: endpoints have hints (IPv4)"},
			},
			{
				name: "not wanted",
				do:   func() { events.Passed(Pass{Service: not}) },
				want: []string{"Normal TopologyAwareHintsDisabled: endpoints have no hints any more (IPv4): the Service asks for none"},
			},
			{name: "a conflict", do: func() {
				events.Passed(Pass{Service: not, Err: fmt.Errorf("update: %w", kube.ErrConflict)})
			}},
			{name: "a busy kube-apiserver", do: func() {
				events.Passed(Pass{Service: not, Err: fmt.Errorf("update: %w", apierrors.NewTooManyRequests("later", 1))})
			}},
			{
				name: "a failure",
				do:   func() { events.Passed(Pass{Service: not, Err: errors.New("busy")}) },
				want: []string{"Warning FailedToUpdateEndpointSlices: cannot update the EndpointSlices, will be tried again: busy"},
			},
			{
				name: "a slice that cannot be read",
				do: func() {
					events.Passed(Pass{Service: not, Err: fmt.Errorf("%w: no answer", ErrUnread)})
				},
				want: []string{"Warning FailedToListEndpointSlices: cannot read the EndpointSlices, will be tried again: slices of the service cannot be read: no answer"},
			},
			{
				name: "a second writer",
				do:   func() { events.Contended(not, "other") },
				want: []string{`Warning EndpointSlicesContended: "other" keeps changing the EndpointSlices back; but for missing endpoints they are left alone for a while. ` +
					"If it is kube-controller-manager, switch its endpointslice-controller off"},
			},
		} {
			client.ClearActions()
			step.do()
			synctest.Wait()
			if diff := gocmp.Diff(step.want, sent(t, client)); diff != "" {
				t.Errorf("%s: events (-want +got):\n%s", step.name, diff)
			}
		}
		cancel()
		if err := <-returned; err != nil {
			t.Error(err)
		}
		events.Contended(not, "other") // nobody sends it any more, and nobody waits
	})
}

// sent returns the Events there are, and deletes them.
func sent(t *testing.T, client *fake.Clientset) []string {
	t.Helper()
	list, err := client.CoreV1().Events(slicetest.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, event := range list.Items {
		if event.Source.Component != "endpoint-slice-controller" || event.InvolvedObject.Kind != "Service" || event.InvolvedObject.Name != "web" {
			t.Errorf("event is %+v, want one of endpoint-slice-controller about Service web", event)
		}
		texts = append(texts, event.Type+" "+event.Reason+": "+event.Message)
		if err := client.CoreV1().Events(slicetest.Namespace).Delete(t.Context(), event.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return texts
}
