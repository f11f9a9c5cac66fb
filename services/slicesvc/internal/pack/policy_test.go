package pack_test

import (
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestMake_FollowsUpstreamsPolicy(t *testing.T) {
	service := slicetest.Service("web")
	old := func(name string, from, to int) *discoveryv1.EndpointSlice {
		return slicetest.Slice(service, name, slicetest.Pods(from, to))
	}
	recycled := slicetest.Service("web", func(service *corev1.Service) {
		service.Spec.Ports[0].TargetPort = intstr.FromInt32(9090)
	})
	ten := make([]*discoveryv1.EndpointSlice, 0, 10)
	for i := range 10 {
		ten = append(ten, old(string(rune('a'+i)), 30*i, 30*i+30))
	}
	for name, c := range map[string]struct {
		in   pack.Input
		want outcome
	}{
		"no pods and no slices: a placeholder": {
			in:   input(service, nil),
			want: outcome{Creates: 1, Fill: []int{0}},
		},
		"no pods and a placeholder: nothing": {
			in:   input(service, nil, slicetest.Slice(service, "a", nil)),
			want: outcome{Fill: []int{0}},
		},
		"the last pod goes: its slice becomes the placeholder": {
			in:   input(service, nil, old("a", 0, 1)),
			want: outcome{Updates: 1, Fill: []int{0}},
		},
		"the last pod goes beside a placeholder: that one stays": {
			in:   input(service, nil, old("a", 0, 1), slicetest.Slice(service, "b", nil)),
			want: outcome{Deletes: 1, Fill: []int{0}},
		},
		"the first pod comes: the placeholder is recycled": {
			in:   input(service, slicetest.Pods(0, 1), slicetest.Slice(service, "a", nil)),
			want: outcome{Updates: 1, Fill: []int{1}},
		},
		"250 pods": {
			in:   input(service, slicetest.Pods(0, 250)),
			want: outcome{Creates: 3, Fill: []int{100, 100, 50}},
		},
		"a rest that fits into one slice goes into the fuller one": {
			in:   input(service, slicetest.Pods(0, 250), old("a", 0, 62), old("b", 62, 123)),
			want: outcome{Creates: 1, Updates: 1, Fill: []int{100, 89, 61}},
		},
		"a rest that fits into none is not split over them": {
			in:   input(service, slicetest.Pods(0, 300), old("a", 0, 74), old("b", 74, 148)),
			want: outcome{Creates: 2, Fill: []int{100, 74, 74, 52}},
		},
		"slices that are written anyway are filled first": {
			in:   input(service, slicetest.Pods(5, 115), old("a", 0, 80), old("b", 80, 100)),
			want: outcome{Updates: 1, Fill: []int{90, 20}},
		},
		"ten slices of thirty stay as they are": {
			in:   input(service, slicetest.Pods(0, 300), ten...),
			want: outcome{Fill: []int{30, 30, 30, 30, 30, 30, 30, 30, 30, 30}},
		},
		"other ports change the slices and move nothing": { // upstream packs the endpoints anew
			in:   input(recycled, slicetest.Pods(0, 300), ten...),
			want: outcome{Updates: 10, Fill: []int{30, 30, 30, 30, 30, 30, 30, 30, 30, 30}},
		},
		"an earlier Service's slice is not reused": {
			in: input(service, slicetest.Pods(0, 2), slicetest.Slice(service, "a", slicetest.Pods(0, 2), func(slice *discoveryv1.EndpointSlice) {
				slice.OwnerReferences[0].UID = "earlier"
			})),
			want: outcome{Creates: 1, Deletes: 1, Fill: []int{2}},
		},
		"a slice of another family is not reused": {
			in: input(service, slicetest.Pods(0, 2), slicetest.Slice(service, "a", nil, func(slice *discoveryv1.EndpointSlice) {
				slice.AddressType = discoveryv1.AddressTypeIPv6
			})),
			want: outcome{Creates: 1, Deletes: 1, Fill: []int{2}},
		},
		"a slice that is being deleted does not count": {
			in:   input(service, slicetest.Pods(0, 2), slicetest.Slice(service, "a", slicetest.Pods(0, 2), terminating)),
			want: outcome{Creates: 1, Fill: []int{2, 2}},
		},
		"a lower limit moves nothing": {
			in:   input(service, slicetest.Pods(0, 130), old("a", 0, 130)),
			want: outcome{Fill: []int{130}},
		},
		"a slice above a lower limit takes nothing": {
			in:   input(service, slicetest.Pods(1, 131), old("a", 0, 130)),
			want: outcome{Creates: 1, Updates: 1, Fill: []int{129, 1}},
		},
		"an endpoint in two slices stays in the first": {
			in:   input(service, slicetest.Pods(0, 10), old("a", 0, 10), old("b", 5, 10)),
			want: outcome{Deletes: 1, Fill: []int{10}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := gocmp.Diff(c.want, outcomeOf(t, c.in)); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMake_LimitDecidesHowManySlices(t *testing.T) {
	for limit, want := range map[int][]int{
		50:  {50, 50, 50, 50, 50},
		80:  {80, 80, 80, 10},
		150: {150, 100},
		250: {250},
		500: {250},
	} {
		in := input(slicetest.Service("web"), slicetest.Pods(0, 250))
		in.Limit = limit
		if diff := gocmp.Diff(want, outcomeOf(t, in).Fill); diff != "" {
			t.Errorf("limit %d (-want +got):\n%s", limit, diff)
		}
	}
}

func TestMake_NamedPortsGroupPods(t *testing.T) {
	service := slicetest.Service("web", func(service *corev1.Service) {
		service.Spec.Ports[0].TargetPort = intstr.FromString("http")
	})
	candidates := slicetest.Pods(0, 300)
	for i := range candidates {
		candidates[i].Pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{
			Name:          "http",
			Protocol:      corev1.ProtocolTCP,
			ContainerPort: int32(8080 + i%5),
		}}}}
	}
	want := outcome{Creates: 5, Fill: []int{60, 60, 60, 60, 60}}
	if diff := gocmp.Diff(want, outcomeOf(t, input(service, candidates))); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
}

func TestMake_TerminatingServiceGetsNoNewSlices(t *testing.T) {
	service := slicetest.Service("web", func(service *corev1.Service) {
		now := service.CreationTimestamp
		service.DeletionTimestamp = &now
		service.Finalizers = []string{"example.com/wait"}
	})
	for name, c := range map[string]struct {
		in   pack.Input
		want outcome
	}{
		"no slice is created": {
			in:   input(service, slicetest.Pods(0, 2)),
			want: outcome{},
		},
		"a slice without an owner stays, as it was orphaned": {
			in: input(service, slicetest.Pods(0, 2), slicetest.Slice(service, "a", slicetest.Pods(0, 3), func(slice *discoveryv1.EndpointSlice) {
				slice.OwnerReferences = nil
			})),
			want: outcome{Fill: []int{3}},
		},
		"existing slices follow the pods": {
			in:   input(service, slicetest.Pods(0, 2), slicetest.Slice(service, "a", slicetest.Pods(0, 3))),
			want: outcome{Updates: 1, Fill: []int{2}},
		},
		"an unneeded slice is reused": {
			in:   input(service, slicetest.Pods(0, 2), slicetest.Slice(service, "a", nil)),
			want: outcome{Updates: 1, Fill: []int{2}},
		},
		"a slice above the lowered limit keeps its endpoints": {
			in:   limited(4, input(service, slicetest.Pods(0, 6), slicetest.Slice(service, "a", slicetest.Pods(0, 6)))),
			want: outcome{Fill: []int{6}},
		},
		"and follows the pods, while other slices take new ones": {
			in: limited(4, input(service, slicetest.Pods(1, 9),
				slicetest.Slice(service, "a", slicetest.Pods(0, 6)), slicetest.Slice(service, "b", slicetest.Pods(6, 7)))),
			want: outcome{Updates: 2, Fill: []int{5, 3}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := gocmp.Diff(c.want, outcomeOf(t, c.in)); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

// An endpoint stays in its slice as long as it exists, also when the slices that are written anyway
// would fit into fewer.
func TestMake_EndpointsStayInTheirSlices(t *testing.T) {
	service := slicetest.Service("web")
	old := func(name string, from, to int) *discoveryv1.EndpointSlice {
		return slicetest.Slice(service, name, slicetest.Pods(from, to))
	}
	for name, c := range map[string]struct {
		pods   []desired.Candidate
		slices []*discoveryv1.EndpointSlice
		want   []string
	}{
		"both lost endpoints": {
			pods:   slicetest.Pods(10, 100),
			slices: []*discoveryv1.EndpointSlice{old("a", 0, 60), old("b", 60, 110)},
			want: []string{
				"update a ENDPOINTS_CHANGED: 0 endpoints added, 10 removed, 0 changed",
				"update b ENDPOINTS_CHANGED: 0 endpoints added, 10 removed, 0 changed",
			},
		},
		"a new one fills the gap into which it fits": {
			pods:   slices.Concat(slicetest.Pods(10, 100), slicetest.Pods(110, 111)),
			slices: []*discoveryv1.EndpointSlice{old("a", 0, 60), old("b", 60, 110)},
			want: []string{
				"update a ENDPOINTS_CHANGED: 1 endpoints added, 10 removed, 0 changed",
				"update b ENDPOINTS_CHANGED: 0 endpoints added, 10 removed, 0 changed",
			},
		},
		"the deletion of a merged slice failed": {
			pods:   slicetest.Pods(0, 30),
			slices: []*discoveryv1.EndpointSlice{old("a", 25, 30), took(old("b", 0, 30))},
			want:   []string{"delete a EMPTIED: 5 endpoints gone, none left"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(service, c.pods, c.slices...)
			if diff := gocmp.Diff(c.want, reasons(pack.Make(in))); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		})
	}
}

// took marks a slice that took endpoints from another one.
func took(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	slice.Annotations = map[string]string{pack.TookEndpoints: "true"}
	return slice
}

// Two sets of ports become one. Each slice gets the new ports with its endpoints.
func TestMake_PortsChangeInPlace(t *testing.T) {
	before, after := slicetest.Service("web"), slicetest.Service("web")
	before.Spec.Ports[0].TargetPort = intstr.FromString("http")
	after.Spec.Ports[0].TargetPort = intstr.FromInt32(9999)
	pods := slicetest.Pods(0, 300)
	for i := range pods {
		pods[i].Pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{
			Name: "http", Protocol: corev1.ProtocolTCP, ContainerPort: int32(8080 + i%2),
		}}}}
	}
	in := input(before, pods)
	in.Slices = apply(t, nil, pack.Make(in).Changes)
	was := placesOf(in.Slices)
	merging := input(after, pods, in.Slices...)
	plan := pack.Make(merging)
	now := apply(t, in.Slices, plan.Changes)
	if diff := gocmp.Diff(was, placesOf(now)); diff != "" {
		t.Errorf("two sets become one: endpoints moved (-before +after):\n%s", diff)
	}
	for _, slice := range now {
		if *slice.Ports[0].Port != 9999 || pack.TookEndpointsLately(slice) {
			t.Errorf("slice %s has port %d and annotations %v", slice.Name, *slice.Ports[0].Port, slice.Annotations)
		}
	}
}

// placesOf returns the slice of each endpoint.
func placesOf(among []*discoveryv1.EndpointSlice) map[string]string {
	places := map[string]string{}
	for _, slice := range among {
		for i := range slice.Endpoints {
			places[slice.Endpoints[i].TargetRef.Name] += slice.Name
		}
	}
	return places
}
