package pack_test

import (
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestMake_NewSliceIsComplete(t *testing.T) {
	service := slicetest.Service("web", func(service *corev1.Service) {
		service.Labels = map[string]string{
			"team":                       "a",
			discoveryv1.LabelManagedBy:   "the Service's own",
			discoveryv1.LabelServiceName: "another",
			corev1.IsHeadlessService:     "x",
		}
	})
	in := input(service, slicetest.Pods(0, 1))
	in.ChangeTime = time.Date(2026, time.March, 1, 14, 0, 0, 500, time.FixedZone("", 3600))
	plan := pack.Make(in)
	if len(plan.Changes) != 1 {
		t.Fatalf("plan is %v, want one change", reasons(plan))
	}
	name, protocol, port := "http", corev1.ProtocolTCP, int32(8080)
	yes, no, node, zone := true, false, "node-a", "zone-a"
	want := pack.Change{
		Verb:   planned.Create,
		Reason: pack.NewEndpoints,
		Added:  1,
		Slice: &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:      plan.Changes[0].Slice.Name, // checked in TestMake_NamesAreDeterministic
				Namespace: "shop",
				Labels: map[string]string{
					"team":                       "a",
					discoveryv1.LabelServiceName: "web",
					discoveryv1.LabelManagedBy:   slicetest.ManagedBy,
				},
				Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-03-01T13:00:00.0000005Z"},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "v1", Kind: "Service", Name: "web", UID: "uid-of-web",
					Controller: &yes, BlockOwnerDeletion: &yes,
				}},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses:  []string{"10.1.0.1"},
				Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "uid-of-web-0"},
				NodeName:   &node,
				Zone:       &zone,
			}},
		},
	}
	if diff := gocmp.Diff(want, plan.Changes[0]); diff != "" {
		t.Errorf("change (-want +got):\n%s", diff)
	}
}

func TestMake_HeadlessLabel(t *testing.T) {
	for clusterIP, want := range map[string]bool{"": true, corev1.ClusterIPNone: true, "10.96.0.1": false, "fd00::1": false} {
		service := slicetest.Service("web", func(service *corev1.Service) { service.Spec.ClusterIP = clusterIP })
		plan := pack.Make(input(service, slicetest.Pods(0, 1)))
		if _, got := plan.Changes[0].Slice.Labels[corev1.IsHeadlessService]; got != want {
			t.Errorf("cluster IP %q: headless label %t, want %t", clusterIP, got, want)
		}
	}
}

func TestMake_UpdateKeepsMetadataOfOtherWriters(t *testing.T) {
	service := slicetest.Service("web")
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other"}
	for name, c := range map[string]struct {
		slice *discoveryv1.EndpointSlice
		want  pack.Reason
	}{
		"changed endpoints": {slice: slicetest.Slice(service, "a", slicetest.Pods(0, 2)), want: pack.EndpointsChanged},
		"recycled":          {slice: slicetest.Slice(service, "a", nil), want: pack.Recycled},
	} {
		t.Run(name, func(t *testing.T) {
			c.slice.Annotations = map[string]string{"note": "keep", corev1.EndpointsLastChangeTriggerTime: "old"}
			c.slice.Finalizers = []string{"example.com/wait"}
			c.slice.OwnerReferences = append(c.slice.OwnerReferences, other)
			plan := pack.Make(input(service, slicetest.Pods(0, 1), c.slice))

			want := c.slice.DeepCopy()
			want.Annotations = map[string]string{"note": "keep"}
			fresh := slicetest.Slice(service, "a", slicetest.Pods(0, 1))
			want.Endpoints, want.Ports = fresh.Endpoints, fresh.Ports
			if diff := gocmp.Diff(want, plan.Changes[0].Slice); diff != "" {
				t.Errorf("slice (-want +got):\n%s", diff)
			}
			if got := plan.Changes[0].Reason; got != c.want {
				t.Errorf("reason is %s, want %s", got, c.want)
			}
		})
	}
}

func TestMake_ChangesThatCauseAWrite(t *testing.T) {
	for name, c := range map[string]struct {
		service func(*corev1.Service)
		pod     func(*corev1.Pod)
		slice   func(*discoveryv1.EndpointSlice)
		want    []pack.Reason
	}{
		"nothing changed":            {},
		"label of the Service":       {service: func(s *corev1.Service) { s.Labels = map[string]string{"team": "b"} }, want: []pack.Reason{pack.LabelsChanged}},
		"reserved label of it":       {service: func(s *corev1.Service) { s.Labels = map[string]string{discoveryv1.LabelManagedBy: "me"} }},
		"annotation of the Service":  {service: func(s *corev1.Service) { s.Annotations = map[string]string{"a": "b"} }},
		"label on the slice":         {slice: func(s *discoveryv1.EndpointSlice) { s.Labels["x"] = "y" }, want: []pack.Reason{pack.LabelsChanged}},
		"headless label alone":       {slice: func(s *discoveryv1.EndpointSlice) { s.Labels[corev1.IsHeadlessService] = "" }, want: []pack.Reason{pack.LabelsChanged}},
		"annotation on the slice":    {slice: func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"x": "y"} }},
		"readiness":                  {pod: slicetest.Unready, want: []pack.Reason{pack.EndpointsChanged}},
		"UID of the pod":             {pod: func(p *corev1.Pod) { p.UID = "another" }, want: []pack.Reason{pack.EndpointsChanged}},
		"resourceVersion of the pod": {pod: func(p *corev1.Pod) { p.ResourceVersion = "99" }},
		"resourceVersion of a target": {slice: func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].TargetRef.ResourceVersion = "99"
		}},
		"hints": {
			slice: func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}}
			},
			want: []pack.Reason{pack.EndpointsChanged},
		},
		"a missing condition": {
			slice: func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Serving = nil },
			want:  []pack.Reason{pack.EndpointsChanged},
		},
		"phase Failed": {
			pod:  func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
			want: []pack.Reason{pack.Recycled},
		},
		"ports removed": {
			service: func(s *corev1.Service) { s.Spec.Ports = nil },
			want:    []pack.Reason{pack.Recycled},
		},
		"another family": {
			service: func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} },
			want:    []pack.Reason{pack.Placeholder, pack.FamilyGone},
		},
	} {
		t.Run(name, func(t *testing.T) {
			service, pods := slicetest.Service("web"), slicetest.Pods(0, 1)
			slice := slicetest.Slice(service, "a", pods)
			if c.service != nil {
				c.service(service)
			}
			if c.pod != nil {
				c.pod(pods[0].Pod)
			}
			if c.slice != nil {
				c.slice(slice)
			}
			var got []pack.Reason
			for _, change := range pack.Make(input(service, pods, slice)).Changes {
				got = append(got, change.Reason)
			}
			if diff := gocmp.Diff(c.want, got); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMake_NamesAreDeterministic(t *testing.T) {
	service := slicetest.Service("web")
	names := func(in pack.Input) []string {
		var all []string
		for _, change := range pack.Make(in).Changes {
			all = append(all, change.Slice.Name)
		}
		return all
	}
	in := input(service, slicetest.Pods(0, 250))
	first := names(in)
	if len(first) != 3 || first[0] == first[1] || first[1] == first[2] {
		t.Fatalf("names are %v, want three different ones", first)
	}
	if diff := gocmp.Diff(first, names(in)); diff != "" {
		t.Errorf("a second plan chooses other names:\n%s", diff)
	}

	in.SliceNames = []string{first[1]}
	without := names(in)
	if without[0] != first[0] || without[1] != first[2] || without[2] == first[1] {
		t.Errorf("with %s taken the names are %v, before %v", first[1], without, first)
	}

	in.SliceNames = nil
	in.Owner = pack.ServiceOwner(slicetest.Service("web", func(service *corev1.Service) { service.UID = "another" }))
	if again := names(in); again[0] == first[0] {
		t.Errorf("a replaced Service uses the name %s of the earlier one", again[0])
	}

	in.Owner = pack.ServiceOwner(slicetest.Service(strings.Repeat("x", 51) + "-" + strings.Repeat("y", 11)))
	if name := names(in)[0]; len(name) > 63 || strings.Contains(name, "--") {
		t.Errorf("name %q of %d characters, want at most 63 and one dash", name, len(name))
	}
}

func TestChange_SupersedesOnlyWhereEndpointsMoved(t *testing.T) {
	for reason, want := range map[pack.Reason]bool{
		pack.PortsGone: true, pack.NotOwned: true, pack.Compacted: true, pack.Emptied: false, pack.FamilyGone: false,
	} {
		if got := (pack.Change{Verb: planned.Delete, Reason: reason}).Supersedes(); got != want {
			t.Errorf("deletion for %s supersedes: %t, want %t", reason, got, want)
		}
	}
}

// The Pod of an emptied slice may have another address by now, in another slice, which must be
// written before the emptied slice is deleted.
func TestMake_EmptiedSliceSupersedesIfItsPodsMoved(t *testing.T) {
	service := slicetest.Service("web")
	for name, c := range map[string]struct {
		pods []desired.Candidate
		want bool
	}{
		"its pod has another address": {pods: append(slicetest.Pods(1, 3), slicetest.Candidate(slicetest.Pod("web-0", "10.1.0.99"))), want: true},
		"its pod is gone":             {pods: slicetest.Pods(1, 4)},
		"its pod was replaced": {pods: append(slicetest.Pods(1, 3), slicetest.Candidate(slicetest.Pod("web-0", "10.1.0.99", func(pod *corev1.Pod) {
			pod.UID = "another"
		})))},
	} {
		in := input(service, c.pods, slicetest.Slice(service, "a", slicetest.Pods(0, 1)), slicetest.Slice(service, "b", slicetest.Pods(1, 3)))
		plan := pack.Make(in)
		if len(plan.Changes) != 2 || plan.Changes[1].Reason != pack.Emptied {
			t.Fatalf("%s: plan %v, want an update and then a deletion", name, reasons(plan))
		}
		if got := plan.Changes[1].Supersedes(); got != c.want {
			t.Errorf("%s: the deletion supersedes: %t, want %t", name, got, c.want)
		}
	}
}

func TestMake_PodsThatShareAnAddressKeepTheirOwnEndpoints(t *testing.T) {
	candidates := []desired.Candidate{
		slicetest.Candidate(slicetest.Pod("web-0", "10.1.0.1")),
		slicetest.Candidate(slicetest.Pod("web-1", "10.1.0.1")),
	}
	plan := pack.Make(input(slicetest.Service("web"), candidates))
	var pods []string
	for _, endpoint := range plan.Changes[0].Slice.Endpoints {
		pods = append(pods, endpoint.TargetRef.Name)
	}
	if diff := gocmp.Diff([]string{"web-0", "web-1"}, pods); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}
