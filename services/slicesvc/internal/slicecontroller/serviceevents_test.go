package slicecontroller

import (
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

	"github.com/trivet-dev/trivet/internal/planned"
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

func TestUpstreamMetrics_HaveUpstreamsNames(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	metrics, err := newUpstreamMetrics(registry, func() serviceSizes {
		return serviceSizes{
			endpoints:  150,
			slices:     3,
			minSlices:  2,
			topologies: map[string]int{"Auto": 1, "PreferClose": 4},
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	written := []pack.Change{{Verb: planned.Create, Added: 3}, {Verb: planned.Update, Added: 1, Removed: 2}, {Verb: planned.Delete, Removed: 5}, {Verb: planned.Create, Added: 9}}
	outcomes := []Outcome{{State: Applied}, {State: Applied}, {State: NotNeeded}, {State: Failed}}
	metrics.observeSync(slicetest.Service("web", auto), written, outcomes, nil)
	metrics.observeSync(slicetest.Service("web", prefer("PreferClose")), nil, nil, fmt.Errorf("update: %w", kube.ErrConflict))
	metrics.observeSync(slicetest.Service("web"), nil, nil, errors.New("busy"))
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

// gathered returns the value of each metric, or the sum of a histogram, by name and label values.
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
				t.Errorf("%s is not an upstream name", family.GetName())
			}
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			values[name] = metric.GetHistogram().GetSampleSum() + metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return values
}

func topologyOf(problem string) []pack.FamilyHints {
	return []pack.FamilyHints{{
		AddressType: discoveryv1.AddressTypeIPv4,
		Verdict:     hints.Verdict{Hinted: problem == "", Problem: problem},
	}}
}

func TestServiceEvents_RecordChangesOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		events := newServiceEvents(slicetest.Clientset{Interface: client}.Events())
		events.Start(t.Context())
		hinted, unhinted := slicetest.Service("web", auto), slicetest.Service("web")
		for _, step := range []struct {
			name string
			do   func()
			want []string
		}{
			{name: "no hints wanted", do: func() { events.syncFinished(unhinted, nil, nil) }},
			{
				name: "hints",
				do:   func() { events.syncFinished(hinted, topologyOf(""), nil) },
				want: []string{"Normal TopologyAwareHintsEnabled: endpoints have hints (IPv4)"},
			},
			{name: "hints again, unchanged", do: func() { events.syncFinished(hinted, topologyOf(""), nil) }},
			{
				name: "no hints",
				do:   func() { events.syncFinished(hinted, topologyOf("one zone"), nil) },
				want: []string{"Warning TopologyAwareHintsDisabled: endpoints have no hints (IPv4): one zone"},
			},
			{name: "no hints, unchanged", do: func() { events.syncFinished(hinted, topologyOf("one zone"), nil) }},
			{
				name: "hints again",
				do:   func() { events.syncFinished(hinted, topologyOf(""), nil) },
				want: []string{"Normal TopologyAwareHintsEnabled: endpoints have hints (IPv4)"},
			},
			{
				name: "hints no longer wanted",
				do:   func() { events.syncFinished(unhinted, nil, nil) },
				want: []string{"Normal TopologyAwareHintsDisabled: endpoints no longer have hints (IPv4): the Service asks for none"},
			},
			{name: "a conflict", do: func() {
				events.syncFinished(unhinted, nil, fmt.Errorf("update: %w", kube.ErrConflict))
			}},
			{name: "a throttling kube-apiserver", do: func() {
				events.syncFinished(unhinted, nil, fmt.Errorf("update: %w", apierrors.NewTooManyRequests("later", 1)))
			}},
			{
				name: "a failure",
				do:   func() { events.syncFinished(unhinted, nil, errors.New("busy")) },
				want: []string{"Warning FailedToUpdateEndpointSlices: cannot update the EndpointSlices, will retry: busy"},
			},
			{
				name: "a slice that cannot be read",
				do: func() {
					events.syncFinished(unhinted, nil, fmt.Errorf("%w: no answer", ErrSlicesUnread))
				},
				want: []string{"Warning FailedToListEndpointSlices: cannot read the EndpointSlices, will retry: slices of the service cannot be read: no answer"},
			},
			{
				name: "a second writer",
				do:   func() { events.contended(unhinted, "other") },
				want: []string{`Warning EndpointSlicesContended: "other" keeps reverting the EndpointSlices. Changes of endpoints are still written, others wait up to a minute. ` +
					"If it is kube-controller-manager, disable its endpointslice-controller"},
			},
		} {
			client.ClearActions()
			step.do()
			synctest.Wait()
			if diff := gocmp.Diff(step.want, sent(t, client)); diff != "" {
				t.Errorf("%s: events (-want +got):\n%s", step.name, diff)
			}
		}
		events.Stop()
		events.contended(unhinted, "other") // dropped, without blocking
	})
}

// sent returns the stored Events and deletes them.
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
