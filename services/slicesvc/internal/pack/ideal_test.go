package pack_test

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestIdeal_FamiliesAndPortsShareNoSlice(t *testing.T) {
	web := slicetest.Service("web")
	other := slicetest.Service("web", func(service *corev1.Service) {
		service.Spec.Ports[0].TargetPort = intstr.FromInt32(9090)
	})
	six := func(slice *discoveryv1.EndpointSlice) { slice.AddressType = discoveryv1.AddressTypeIPv6 }
	full, half := slicetest.Slice(web, "full", slicetest.Pods(0, 10)), slicetest.Slice(web, "half", slicetest.Pods(10, 15))
	for name, c := range map[string]struct {
		slices   []*discoveryv1.EndpointSlice
		families int
		want     int
	}{
		"nothing":               {families: 1, want: 1},
		"nothing in either":     {families: 2, want: 2},
		"a placeholder":         {slices: []*discoveryv1.EndpointSlice{slicetest.Slice(web, "empty", nil)}, families: 1, want: 1},
		"exactly full":          {slices: []*discoveryv1.EndpointSlice{full}, families: 1, want: 1},
		"one over":              {slices: []*discoveryv1.EndpointSlice{full, slicetest.Slice(web, "one", slicetest.Pods(10, 11))}, families: 1, want: 2},
		"two halves":            {slices: []*discoveryv1.EndpointSlice{half, slicetest.Slice(web, "too", slicetest.Pods(0, 5))}, families: 1, want: 1},
		"two sets of ports":     {slices: []*discoveryv1.EndpointSlice{half, slicetest.Slice(other, "too", slicetest.Pods(0, 5))}, families: 1, want: 2},
		"two families":          {slices: []*discoveryv1.EndpointSlice{half, slicetest.Slice(web, "six", slicetest.Pods(0, 5), six)}, families: 2, want: 2},
		"a family that is left": {slices: []*discoveryv1.EndpointSlice{half}, families: 2, want: 2},
	} {
		if got := pack.Ideal(c.slices, c.families, 10); got != c.want {
			t.Errorf("%s: ideal is %d, want %d", name, got, c.want)
		}
	}
}
