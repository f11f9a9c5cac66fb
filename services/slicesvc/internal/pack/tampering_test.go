package pack_test

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// Each case is a rule of doc.go for a slice that another writer changed.
func TestMake_RepairsTamperedSlices(t *testing.T) {
	for name, c := range map[string]struct {
		limit  int
		tamper func(*discoveryv1.EndpointSlice)
		// want is what is written; nil for nothing.
		want []string
	}{
		"more endpoints than allowed stay, as with upstream": {limit: 3},
		"a duplicate endpoint is removed": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Endpoints = append(slice.Endpoints, slice.Endpoints[0]) },
			want:   []string{"update a ENDPOINTS_CHANGED: 0 endpoints added, 1 removed, 0 changed"},
		},
		"an invalid address is removed": {
			tamper: func(slice *discoveryv1.EndpointSlice) {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"no address"}})
			},
			want: []string{"update a ENDPOINTS_CHANGED: 0 endpoints added, 1 removed, 0 changed"},
		},
		"an endpoint without an address is removed": {
			tamper: func(slice *discoveryv1.EndpointSlice) {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{})
			},
			want: []string{"update a ENDPOINTS_CHANGED: 0 endpoints added, 1 removed, 0 changed"},
		},
		"a changed address comes back": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Endpoints[0].Addresses = []string{"10.66.66.66"} },
			want:   []string{"update a ENDPOINTS_CHANGED: 1 endpoints added, 1 removed, 0 changed"},
		},
		"a removed target comes back": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Endpoints[0].TargetRef = nil },
			want:   []string{"update a ENDPOINTS_CHANGED: 1 endpoints added, 1 removed, 0 changed"},
		},
		"unwanted hints are removed": {
			tamper: func(slice *discoveryv1.EndpointSlice) {
				slice.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}}
			},
			want: []string{"update a ENDPOINTS_CHANGED: 0 endpoints added, 0 removed, 1 changed"},
		},
		"removed endpoints come back": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Endpoints = nil },
			want:   []string{"update a ENDPOINTS_CHANGED: 4 endpoints added, 0 removed, 0 changed"},
		},
		"a slice whose ports were removed is recycled": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Ports = nil },
			want:   []string{"update a RECYCLED: now 4 IPv4 endpoints for ports http 8080/TCP"},
		},
		"a port without a number is another port": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Ports = []discoveryv1.EndpointPort{{}} },
			want:   []string{"update a RECYCLED: now 4 IPv4 endpoints for ports http 8080/TCP"},
		},
		"a duplicate port makes another set of ports": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Ports = append(slice.Ports, slice.Ports[0]) },
			want:   []string{"update a RECYCLED: now 4 IPv4 endpoints for ports http 8080/TCP"},
		},
		"a label that the Service has not is removed": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Labels["by"] = "hand" },
			want:   []string{"update a LABELS_CHANGED: labels differ from the Service's"},
		},
		"the label of headless Services is removed": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Labels[corev1.IsHeadlessService] = "" },
			want:   []string{"update a LABELS_CHANGED: labels differ from the Service's"},
		},
		"a reserved label alone causes no write": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Labels[discoveryv1.LabelManagedBy] = "other" },
		},
		"missing reserved labels cause no write": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Labels = nil },
		},
		"an annotation stays": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.Annotations = map[string]string{"by": "hand"} },
		},
		"a further owner stays": {
			tamper: func(slice *discoveryv1.EndpointSlice) {
				slice.OwnerReferences = append(slice.OwnerReferences, metav1.OwnerReference{UID: "other"})
			},
		},
		"a slice without the Service as owner is replaced": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.OwnerReferences = nil },
			want:   []string{"create web-ulxqo6axtc NEW_ENDPOINTS: 4 IPv4 endpoints for ports http 8080/TCP", "delete a NOT_OWNED: not owned by this Service"},
		},
		"a slice of an unused address type is replaced": {
			tamper: func(slice *discoveryv1.EndpointSlice) { slice.AddressType = discoveryv1.AddressTypeFQDN },
			want:   []string{"create web-ulxqo6axtc NEW_ENDPOINTS: 4 IPv4 endpoints for ports http 8080/TCP", "delete a FAMILY_GONE: the Service has no FQDN addresses"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			service, pods := slicetest.Service("web"), slicetest.Pods(0, 4)
			slice := slicetest.Slice(service, "a", pods)
			if c.tamper != nil {
				c.tamper(slice)
			}
			in := input(service, pods, slice)
			in.Limit = max(c.limit, 0)
			if c.limit == 0 {
				in.Limit = 100
			}
			if diff := gocmp.Diff(c.want, reasons(pack.Make(in))); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			in.Slices = apply(t, in.Slices, pack.Make(in).Changes)
			if again := pack.Make(in); !again.Empty() {
				t.Errorf("the second plan is not empty: %v", reasons(again))
			}
		})
	}
}

func TestMake_UnusualServices(t *testing.T) {
	twice := func(service *corev1.Service) {
		service.Spec.Ports = append(service.Spec.Ports, slicetest.Port("http", 81, intstr.FromInt32(8080)))
	}
	for name, c := range map[string]struct {
		service func(*corev1.Service)
		limit   int
		want    []int
	}{
		"a duplicate port name":      {service: twice, limit: 100, want: []int{4}},
		"a limit of zero":            {limit: 0, want: []int{1, 1, 1, 1}},
		"a negative limit":           {limit: -7, want: []int{1, 1, 1, 1}},
		"no ports":                   {service: func(service *corev1.Service) { service.Spec.Ports = nil }, limit: 100, want: []int{4}},
		"no selector, no cluster IP": {service: func(service *corev1.Service) { service.Spec.Selector, service.Spec.ClusterIP = nil, "" }, limit: 100, want: []int{4}},
	} {
		t.Run(name, func(t *testing.T) {
			var changes []func(*corev1.Service)
			if c.service != nil {
				changes = append(changes, c.service)
			}
			in := input(slicetest.Service("web", changes...), slicetest.Pods(0, 4))
			in.Limit = c.limit
			if diff := gocmp.Diff(c.want, outcomeOf(t, in).Fill); diff != "" {
				t.Errorf("slices (-want +got):\n%s", diff)
			}
			in.Slices = apply(t, in.Slices, pack.Make(in).Changes)
			if again := pack.Make(in); !again.Empty() {
				t.Errorf("the second plan is not empty: %v", reasons(again))
			}
			if compacted := pack.Compact(in, 10); !compacted.Empty() {
				t.Errorf("Compact plans %v, want nothing", reasons(compacted))
			}
		})
	}
}

func TestMake_PodWithoutAValidAddressHasNoEndpoint(t *testing.T) {
	pods := slicetest.Pods(0, 3)
	pods[0].Pod.Status.PodIPs = []corev1.PodIP{{IP: "no address"}}
	pods[1].Pod.Status.PodIPs = []corev1.PodIP{{IP: ""}, {IP: "10.1.0.300"}, {IP: "fe80::1%eth0"}}
	pods[2].Pod.Status.PodIPs = []corev1.PodIP{{IP: "010.001.000.009"}}
	var addresses []string
	for _, endpoint := range pack.Make(input(slicetest.Service("web"), pods)).Changes[0].Slice.Endpoints {
		addresses = append(addresses, endpoint.Addresses...)
	}
	if diff := gocmp.Diff([]string{"10.1.0.9"}, addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}
