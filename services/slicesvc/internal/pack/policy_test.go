package pack_test

import (
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
		"other ports reuse three of ten slices": {
			in:   input(recycled, slicetest.Pods(0, 300), ten...),
			want: outcome{Updates: 3, Deletes: 7, Fill: []int{100, 100, 100}},
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
		"a lower limit moves what is above it": {
			in:   input(service, slicetest.Pods(0, 130), old("a", 0, 130)),
			want: outcome{Creates: 1, Updates: 1, Fill: []int{100, 30}},
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

func TestMake_WrittenSlicesMerge(t *testing.T) {
	service := slicetest.Service("web")
	old := func(name string, from, to int) *discoveryv1.EndpointSlice {
		return slicetest.Slice(service, name, slicetest.Pods(from, to))
	}
	unready := func(pods []desired.Candidate, which ...int) []desired.Candidate {
		for _, i := range which {
			slicetest.Unready(pods[i].Pod)
		}
		return pods
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
				"update a ENDPOINTS_CHANGED: 40 endpoints added, 10 removed, 0 changed",
				"delete b COMPACTED: 50 endpoints moved to other slices",
			},
		},
		"they do not fit": {
			pods:   slicetest.Pods(10, 120),
			slices: []*discoveryv1.EndpointSlice{old("a", 0, 70), old("b", 70, 130)},
			want: []string{
				"update a ENDPOINTS_CHANGED: 0 endpoints added, 10 removed, 0 changed",
				"update b ENDPOINTS_CHANGED: 0 endpoints added, 10 removed, 0 changed",
			},
		},
		"one is not written": {
			pods:   slicetest.Pods(10, 110),
			slices: []*discoveryv1.EndpointSlice{old("a", 0, 60), old("b", 60, 110)},
			want:   []string{"update a ENDPOINTS_CHANGED: 0 endpoints added, 10 removed, 0 changed"},
		},
		"endpoints that change stay where they are": {
			pods:   unready(slicetest.Pods(0, 40), 5, 35),
			slices: []*discoveryv1.EndpointSlice{old("a", 0, 20), old("b", 20, 40)},
			want: []string{
				"update a ENDPOINTS_CHANGED: 0 endpoints added, 0 removed, 1 changed",
				"update b ENDPOINTS_CHANGED: 0 endpoints added, 0 removed, 1 changed",
			},
		},
		"but other endpoints may move to them": {
			pods:   unready(slicetest.Pods(0, 39), 5),
			slices: []*discoveryv1.EndpointSlice{old("a", 0, 20), old("b", 20, 40)},
			want: []string{
				"update a ENDPOINTS_CHANGED: 19 endpoints added, 0 removed, 1 changed",
				"delete b COMPACTED: 20 endpoints moved to other slices",
			},
		},
		"they were merged before, but the source was not deleted": {
			pods:   slicetest.Pods(0, 30),
			slices: []*discoveryv1.EndpointSlice{old("a", 25, 35), old("b", 0, 30)},
			want:   []string{"delete a COMPACTED: 10 endpoints moved to other slices"},
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

// While an endpoint is in two slices, it is the same in both.
func TestMake_MovedEndpointsDoNotChange(t *testing.T) {
	service := slicetest.Service("web")
	pods := slicetest.Pods(0, 39)
	slicetest.Unready(pods[5].Pod)
	in := input(service, pods, slicetest.Slice(service, "a", slicetest.Pods(0, 20)), slicetest.Slice(service, "b", slicetest.Pods(20, 40)))
	plan := pack.Make(in)
	moved := plan.Changes[0].Slice.Endpoints[20:]
	if diff := gocmp.Diff(in.Slices[1].Endpoints[:19], moved); diff != "" {
		t.Errorf("endpoints before (-) and after (+) differ:\n%s", diff)
	}
}
