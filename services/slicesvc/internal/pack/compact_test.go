package pack_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// quietInput draws a Service for which Make has nothing to do.
func quietInput(t *rapid.T) pack.Input {
	in := randomInput(t)
	in.Service.DeletionTimestamp = nil
	in.Slices = apply(t, in.Slices, pack.Make(in).Changes)
	in.Slices = slices.DeleteFunc(in.Slices, func(slice *discoveryv1.EndpointSlice) bool { return slice.DeletionTimestamp != nil })
	in.Slices = repeated(t, in)
	in.Limit = max(in.Limit, rapid.IntRange(1, 20).Draw(t, "limit now"))
	return in
}

// repeated returns the slices after Repeat.
func repeated(t rapid.TB, in pack.Input) []*discoveryv1.EndpointSlice {
	return apply(t, in.Slices, pack.Repeat(in, 1000).Changes)
}

func TestCompact_MakeHasNothingToDoBeforeAndAfter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := quietInput(t)
		budget := rapid.IntRange(0, 20).Draw(t, "budget")
		plan := pack.Compact(in, budget)
		if len(plan.Changes) > budget {
			t.Fatalf("%d writes, more than %d: %v", len(plan.Changes), budget, reasons(plan))
		}
		desired := wanted(in)
		in.Slices = apply(t, in.Slices, plan.Changes)
		if again := pack.Make(in); !again.Empty() {
			t.Fatalf("after %v: %v", reasons(plan), reasons(again))
		}
		if diff := gocmp.Diff(desired, held(t, in, in.Slices)); diff != "" {
			t.Fatalf("after %v, desired (-) and held (+) endpoints differ:\n%s", reasons(plan), diff)
		}
	})
}

// After each of the writes, every endpoint is in a slice.
func TestCompact_NoEndpointIsMissingWhileAPlanIsApplied(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := quietInput(t)
		want := identities(in.Slices)
		plan := pack.Compact(in, 20)
		for n := range plan.Changes {
			between := apply(t, in.Slices, plan.Changes[:n])
			if diff := gocmp.Diff(want, identities(between)); diff != "" {
				t.Fatalf("after %d of the writes %v (-want +got):\n%s", n, reasons(plan), diff)
			}
		}
		deleted := false
		for _, change := range plan.Changes {
			if deleted && change.Verb != planned.Delete || change.Verb == planned.Delete && !change.Supersedes() {
				t.Fatalf("a slice may be deleted before its endpoints are in another: %v", reasons(plan))
			}
			deleted = change.Verb == planned.Delete
		}
	})
}

// A slice that goes costs at most two writes, and six above 1.2 times the needed slices.
func TestCompact_WritesAreWorthTheSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := quietInput(t)
		before := costOf(in, pack.Plan{}).slices
		got := costOf(in, pack.Compact(in, 1000))
		if saved := before - got.slices; got.writes() > 6*saved || got.creates > 0 || got.deletes != saved {
			t.Fatalf("%+v saves %d of %d slices", got, saved, before)
		}
	})
}

func TestCompact_RepeatedEndsNearTheLeastSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := quietInput(t)
		budget := rapid.IntRange(6, 30).Draw(t, "budget")
		for round := 0; ; round++ {
			plan := pack.Compact(in, budget)
			if plan.Empty() {
				break
			}
			if round > 100 {
				t.Fatal("compaction does not end")
			}
			in.Slices = apply(t, in.Slices, plan.Changes)
			in.Slices = repeated(t, in)
		}
		count := map[string]int{}
		for _, slice := range in.Slices {
			if slice.DeletionTimestamp == nil {
				count[groupName(slice.AddressType, desired.KeyOf(slice.Ports))]++
			}
		}
		for _, family := range in.Endpoints.Families {
			for _, group := range family.Groups {
				at := groupName(family.AddressType, group.Key)
				least := (len(group.Endpoints) + in.Limit - 1) / in.Limit
				if count[at]*5 > least*6 {
					t.Fatalf("%d slices are left for %d endpoints of %s, %d to a slice", count[at], len(group.Endpoints), at, in.Limit)
				}
			}
		}
	})
}

func TestCompact_ChangesNoInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := quietInput(t)
		service, before := in.Service.DeepCopy(), deepCopies(in.Slices)
		plan := pack.Compact(in, 20)
		if diff := gocmp.Diff(service, in.Service); diff != "" {
			t.Fatalf("the Service changed:\n%s", diff)
		}
		if diff := gocmp.Diff(before, in.Slices); diff != "" {
			t.Fatalf("plan %v changed the slices:\n%s", reasons(plan), diff)
		}
	})
}

// scattered returns a Service with 500 endpoints in 50 slices, as upstream leaves them when nine
// tenths of 5,000 random Pods went.
func scattered(t *testing.T) pack.Input {
	service, pods := slicetest.Service("web"), slicetest.Pods(0, 5000)
	in := input(service, pods)
	in.Slices = apply(t, in.Slices, pack.Make(in).Changes)
	random := rand.New(rand.NewPCG(1, 1))
	random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	in.Endpoints = desired.Resolve(service, pods[:500])
	stays := map[string]bool{}
	for _, pod := range pods[:500] {
		stays[pod.Pod.Name] = true
	}
	for _, slice := range in.Slices {
		slice.Endpoints = slices.DeleteFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return !stays[e.TargetRef.Name] })
	}
	return in
}

func TestCompact_AfterNineTenthsOfThePodsWent(t *testing.T) {
	for _, budget := range []int{10, 20, 1000} {
		in := scattered(t)
		before, writes := len(in.Slices), 0
		for plan := pack.Compact(in, budget); !plan.Empty(); plan = pack.Compact(in, budget) {
			writes += len(plan.Changes)
			in.Slices = apply(t, in.Slices, plan.Changes)
			writes += len(pack.Repeat(in, 1000).Changes)
			in.Slices = repeated(t, in)
		}
		t.Logf("budget %d: %d slices become %d with %d writes", budget, before, len(in.Slices), writes)
		if len(in.Slices) > 6 || writes > 65 {
			t.Errorf("budget %d: %d slices are left after %d writes, want at most 6 after 65", budget, len(in.Slices), writes)
		}
	}
}

// While most of the Pods go, Make writes and leaves as many slices as upstream: no endpoint moves.
func TestMake_WritesNoMoreThanUpstreamWhilePodsGo(t *testing.T) {
	for _, batch := range []int{10, 50, 500} {
		service, pods := slicetest.Service("web"), slicetest.Pods(0, 2000)
		in := input(service, pods)
		in.Slices = apply(t, in.Slices, pack.Make(in).Changes)
		random := rand.New(rand.NewPCG(1, 1))
		random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		upstream, _ := upstreamStep(nil, in.Endpoints.Families[0].Groups[0].Endpoints, in.Limit)
		writes, upstreamWrites, least := 0, 0, 0
		for left := len(pods) - batch; left >= 200; left -= batch {
			in.Endpoints = desired.Resolve(service, pods[:left])
			plan := pack.Make(in)
			writes += len(plan.Changes)
			in.Slices = apply(t, in.Slices, plan.Changes)
			var step int
			upstream, step = upstreamStep(upstream, in.Endpoints.Families[0].Groups[0].Endpoints, in.Limit)
			upstreamWrites += step
			least = (left + in.Limit - 1) / in.Limit
		}
		t.Logf("most of 2,000 Pods go by %d: least %d slices; upstream's policy makes %d writes and leaves %d, Make %d and %d",
			batch, least, upstreamWrites, len(upstream), writes, len(in.Slices))
		if writes*100 > upstreamWrites*101 || len(in.Slices) > len(upstream) { // steps differ by chance once the slices do
			t.Errorf("by %d: %d writes leave %d slices, upstream's policy needs %d and leaves %d", batch, writes, len(in.Slices), upstreamWrites, len(upstream))
		}
	}
}

func TestCompact_Writes(t *testing.T) {
	service := slicetest.Service("web")
	with := func(fills ...int) pack.Input {
		var existing []*discoveryv1.EndpointSlice
		from := 0
		for i, fill := range fills {
			existing = append(existing, slicetest.Slice(service, string(rune('a'+i)), slicetest.Pods(from, from+fill)))
			from += fill
		}
		return input(service, slicetest.Pods(0, from), existing...)
	}
	for name, c := range map[string]struct {
		in     pack.Input
		budget int
		want   []string
	}{
		"one slice stays":                      {in: with(1), budget: 10},
		"full ones stay":                       {in: with(100, 100), budget: 10},
		"two halves become one":                {in: with(50, 50), budget: 10, want: []string{"update b COMPACTED: 50 endpoints taken from other slices", "delete a COMPACTED: 50 endpoints moved to other slices"}},
		"the emptiest goes":                    {in: with(60, 10, 30), budget: 10, want: []string{"update a COMPACTED: 40 endpoints taken from other slices", "delete b COMPACTED: 10 endpoints moved to other slices", "delete c COMPACTED: 30 endpoints moved to other slices"}},
		"no budget":                            {in: with(50, 50)},
		"budget too small":                     {in: with(50, 50), budget: 1},
		"half of what could go":                {in: with(60, 10, 30), budget: 2, want: []string{"update c COMPACTED: 10 endpoints taken from other slices", "delete b COMPACTED: 10 endpoints moved to other slices"}},
		"not worth it":                         {in: with(90, 90, 90, 90, 90, 50), budget: 10},
		"many writes, but far above the least": {in: with(70, 70, 60), budget: 10, want: []string{"update a COMPACTED: 30 endpoints taken from other slices", "update b COMPACTED: 30 endpoints taken from other slices", "delete c COMPACTED: 60 endpoints moved to other slices"}},
		"an empty one goes":                    {in: with(10, 0), budget: 1, want: []string{"delete b COMPACTED: 0 endpoints moved to other slices"}},
		"the placeholder stays":                {in: input(service, nil, slicetest.Slice(service, "a", nil)), budget: 10},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "an empty one goes" {
				c.in.Slices[1].Ports = c.in.Slices[0].Ports
			}
			if diff := gocmp.Diff(c.want, reasons(pack.Compact(c.in, c.budget))); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCompact_PlansNothingUnlessQuiet(t *testing.T) {
	halves := func(change func(*pack.Input)) pack.Input {
		service := slicetest.Service("web")
		in := input(service, slicetest.Pods(0, 20),
			slicetest.Slice(service, "a", slicetest.Pods(0, 10)), slicetest.Slice(service, "b", slicetest.Pods(10, 20)))
		change(&in)
		return in
	}
	if plan := pack.Compact(halves(func(*pack.Input) {}), 10); len(plan.Changes) != 2 {
		t.Fatalf("plan is %v, want two writes; the cases below prove nothing", reasons(plan))
	}
	for name, in := range map[string]pack.Input{
		"an endpoint is missing":       halves(func(in *pack.Input) { in.Endpoints = desired.Resolve(in.Service, slicetest.Pods(0, 21)) }),
		"labels differ":                halves(func(in *pack.Input) { in.Slices[0].Labels["x"] = "y" }),
		"the Service is being deleted": halves(func(in *pack.Input) { in.Service.DeletionTimestamp = &metav1.Time{} }),
		"one is being deleted":         halves(func(in *pack.Input) { terminating(in.Slices[0]) }),
		"one took endpoints before":    halves(func(in *pack.Input) { took(in.Slices[0]) }),
	} {
		if plan := pack.Compact(in, 10); !plan.Empty() {
			t.Errorf("%s: plan is %v, want none", name, reasons(plan))
		}
	}
}

func TestCompact_KeepsMetadataAndSetsNoTime(t *testing.T) {
	service := slicetest.Service("web")
	in := input(service, slicetest.Pods(0, 3),
		slicetest.Slice(service, "a", slicetest.Pods(0, 1)), slicetest.Slice(service, "b", slicetest.Pods(1, 3)))
	in.ChangeTime = slicetest.CreationTime()
	in.Slices[1].Annotations = map[string]string{"note": "keep", corev1.EndpointsLastChangeTriggerTime: "old"}
	in.Slices[1].Finalizers = []string{"example.com/wait"}
	in.Slices[0].Endpoints[0].TargetRef.ResourceVersion = "99"

	want := in.Slices[1].DeepCopy()
	want.Annotations = map[string]string{"note": "keep", pack.TookEndpoints: "true"}
	want.Endpoints = append(want.Endpoints, *in.Slices[0].Endpoints[0].DeepCopy())
	if diff := gocmp.Diff(want, pack.Compact(in, 10).Changes[0].Slice); diff != "" {
		t.Errorf("slice (-want +got):\n%s", diff)
	}
}

func TestMinSlices_FamiliesAndPortsShareNoSlice(t *testing.T) {
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
		"nothing in both":       {families: 2, want: 2},
		"a placeholder":         {slices: []*discoveryv1.EndpointSlice{slicetest.Slice(web, "empty", nil)}, families: 1, want: 1},
		"exactly full":          {slices: []*discoveryv1.EndpointSlice{full}, families: 1, want: 1},
		"one over":              {slices: []*discoveryv1.EndpointSlice{full, slicetest.Slice(web, "one", slicetest.Pods(10, 11))}, families: 1, want: 2},
		"two halves":            {slices: []*discoveryv1.EndpointSlice{half, slicetest.Slice(web, "too", slicetest.Pods(0, 5))}, families: 1, want: 1},
		"two sets of ports":     {slices: []*discoveryv1.EndpointSlice{half, slicetest.Slice(other, "too", slicetest.Pods(0, 5))}, families: 1, want: 2},
		"two families":          {slices: []*discoveryv1.EndpointSlice{half, slicetest.Slice(web, "six", slicetest.Pods(0, 5), six)}, families: 2, want: 2},
		"a family that is left": {slices: []*discoveryv1.EndpointSlice{half}, families: 2, want: 2},
	} {
		if got := pack.MinSlices(c.slices, c.families, 10); got != c.want {
			t.Errorf("%s: least is %d, want %d", name, got, c.want)
		}
	}
}
