package pack_test

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestMake_SlicesThatAreWrittenAnywayJoin(t *testing.T) {
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
		"but others may join them": {
			pods:   unready(slicetest.Pods(0, 39), 5),
			slices: []*discoveryv1.EndpointSlice{old("a", 0, 20), old("b", 20, 40)},
			want: []string{
				"update a ENDPOINTS_CHANGED: 19 endpoints added, 0 removed, 1 changed",
				"delete b COMPACTED: 20 endpoints moved to other slices",
			},
		},
		"they joined before, but one did not go any more": {
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

// While an endpoint is in two slices it reads the same in both.
func TestMake_EndpointsThatMoveAreTheSameInBothSlices(t *testing.T) {
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
