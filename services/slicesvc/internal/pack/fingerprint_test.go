package pack_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestPlan_FingerprintIsOfTheWritesAndTheirBase(t *testing.T) {
	plan := func(service func(*corev1.Service), slice func(*discoveryv1.EndpointSlice), pod func(*corev1.Pod), in func(*pack.Input)) string {
		of := slicetest.Service("web", service)
		candidates := slicetest.Pods(0, 4)
		existing := slicetest.Slice(of, "web-a", candidates[:2], slice)
		pod(candidates[1].Pod)
		input := input(of, candidates, existing)
		in(&input)
		return pack.Make(input).Fingerprint(input.Owner)
	}
	noService, noSlice, noPod, noInput := func(*corev1.Service) {}, func(*discoveryv1.EndpointSlice) {}, func(*corev1.Pod) {}, func(*pack.Input) {}
	base := plan(noService, noSlice, noPod, noInput)
	for name, c := range map[string]struct {
		fingerprint string
		same        bool
	}{
		"another time of the change": {plan(noService, noSlice, noPod, func(in *pack.Input) { in.ChangeTime = time.Now() }), true},
		"another order of the pods": {plan(noService, noSlice, noPod, func(in *pack.Input) {
			for _, family := range in.Endpoints.Families {
				slices.Reverse(family.Groups[0].Endpoints)
			}
		}), true},
		"another version of the slice": {fingerprint: plan(noService, func(slice *discoveryv1.EndpointSlice) { slice.ResourceVersion = "8" }, noPod, noInput)},
		"another service":              {fingerprint: plan(func(service *corev1.Service) { service.UID = "other" }, noSlice, noPod, noInput)},
		"another label":                {fingerprint: plan(func(service *corev1.Service) { service.Labels = map[string]string{"a": "b"} }, noSlice, noPod, noInput)},
		"another readiness":            {fingerprint: plan(noService, noSlice, slicetest.Unready, noInput)},
		"a limit that needs a slice":   {fingerprint: plan(noService, noSlice, noPod, func(in *pack.Input) { in.Limit = 3 })},
	} {
		if (c.fingerprint == base) != c.same {
			t.Errorf("%s: fingerprint %s, the base has %s, want equal: %t", name, c.fingerprint, base, c.same)
		}
	}
}
