package pack_test

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// inZones puts the Pods in turn on a Node of each zone.
func inZones(pods []desired.Candidate, zones ...string) []desired.Candidate {
	for i := range pods {
		pods[i].Zone = zones[i%len(zones)]
		pods[i].Pod.Spec.NodeName = "node-in-" + pods[i].Zone
	}
	return pods
}

func sharesOf(names ...string) hints.Shares {
	var topology hints.Topology
	for _, name := range names {
		topology.Add(hints.Node{Zone: name, MilliCPU: 1000, Eligible: true})
	}
	return topology.Shares()
}

func auto(service *corev1.Service) {
	service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
}

func distributed(how string) func(*corev1.Service) {
	return func(service *corev1.Service) { service.Spec.TrafficDistribution = &how }
}

// hintsOf returns the hint of each Pod's endpoint: "zone", "zone/node" or nothing.
func hintsOf(slices []*discoveryv1.EndpointSlice) map[string]string {
	found := map[string]string{}
	for _, slice := range slices {
		for i := range slice.Endpoints {
			endpoint, _ := desired.FromObject(&slice.Endpoints[i])
			text := endpoint.HintZone
			if endpoint.HintNode != "" {
				text += "/" + endpoint.HintNode
			}
			found[endpoint.PodName] = text
		}
	}
	return found
}

func TestMake_HintsOfEachMode(t *testing.T) {
	for name, c := range map[string]struct {
		service func(*corev1.Service)
		want    map[string]string
		verdict []pack.FamilyHints
	}{
		"none":    {service: func(*corev1.Service) {}, want: map[string]string{"web-0": "", "web-1": "", "web-2": "", "web-3": "", "web-4": ""}},
		"unknown": {service: distributed("PreferFar"), want: map[string]string{"web-0": "", "web-1": "", "web-2": "", "web-3": "", "web-4": ""}},
		"zone": {
			service: distributed(corev1.ServiceTrafficDistributionPreferSameZone),
			want:    map[string]string{"web-0": "zone-a", "web-1": "zone-b", "web-2": "zone-a", "web-3": "zone-b", "web-4": ""},
			verdict: []pack.FamilyHints{{AddressType: discoveryv1.AddressTypeIPv4, Verdict: hints.Verdict{Hinted: true}}},
		},
		"node": {
			service: distributed(corev1.ServiceTrafficDistributionPreferSameNode),
			want:    map[string]string{"web-0": "zone-a/node-in-zone-a", "web-1": "zone-b/node-in-zone-b", "web-2": "zone-a/node-in-zone-a", "web-3": "zone-b/node-in-zone-b", "web-4": ""},
			verdict: []pack.FamilyHints{{AddressType: discoveryv1.AddressTypeIPv4, Verdict: hints.Verdict{Hinted: true}}},
		},
		"auto": {
			service: auto,
			want:    map[string]string{"web-0": "zone-a", "web-1": "zone-b", "web-2": "zone-a", "web-3": "zone-b", "web-4": ""},
			verdict: []pack.FamilyHints{{AddressType: discoveryv1.AddressTypeIPv4, Verdict: hints.Verdict{Hinted: true}}},
		},
		"auto precedes a distribution": {
			service: func(service *corev1.Service) { auto(service); distributed("PreferSameNode")(service) },
			want:    map[string]string{"web-0": "zone-a", "web-1": "zone-b", "web-2": "zone-a", "web-3": "zone-b", "web-4": ""},
			verdict: []pack.FamilyHints{{AddressType: discoveryv1.AddressTypeIPv4, Verdict: hints.Verdict{Hinted: true}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pods := inZones(slicetest.Pods(0, 5), "zone-a", "zone-b")
			slicetest.Unready(pods[4].Pod)
			in := input(slicetest.Service("web", c.service), pods)
			in.Shares = sharesOf("zone-a", "zone-b")
			plan := pack.Make(in)
			if diff := gocmp.Diff(c.verdict, plan.Topology); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
			in.Slices = apply(t, in.Slices, plan.Changes)
			if diff := gocmp.Diff(c.want, hintsOf(in.Slices)); diff != "" {
				t.Errorf("hints (-want +got):\n%s", diff)
			}
			if again := pack.Make(in); !again.Empty() {
				t.Errorf("the second plan is not empty: %v", reasons(again))
			}
			in.Service = slicetest.Service("web")
			in.Owner = pack.ServiceOwner(in.Service)
			in.Endpoints = desired.Resolve(in.Service, pods)
			for pod, hint := range hintsOf(apply(t, in.Slices, pack.Make(in).Changes)) {
				if hint != "" {
					t.Errorf("pod %s keeps the hint %q that the Service no longer wants", pod, hint)
				}
			}
		})
	}
}

func TestMake_ReasonForMissingHints(t *testing.T) {
	for name, c := range map[string]struct {
		service func(*corev1.Service)
		pods    []desired.Candidate
		zones   []string
		want    string
	}{
		"auto, no nodes":           {service: auto, pods: inZones(slicetest.Pods(0, 2), "zone-a", "zone-b"), want: "no node is ready"},
		"auto, too few":            {service: auto, pods: inZones(slicetest.Pods(0, 1), "zone-a"), zones: []string{"zone-a", "zone-b"}, want: "1 ready endpoints are fewer than the 2 zones"},
		"auto, no endpoint":        {service: auto, zones: []string{"zone-a", "zone-b"}, want: "no endpoint is ready"},
		"zone, one without":        {service: distributed("PreferClose"), pods: inZones(slicetest.Pods(0, 3), "zone-a", ""), want: "1 of 3 ready endpoints are in no known zone, and kube-proxy looks at hints only when each has one"},
		"zone, no endpoint":        {service: distributed("PreferClose"), want: "no endpoint is ready"},
		"node, zones do not count": {service: distributed("PreferSameNode"), pods: inZones(slicetest.Pods(0, 3), "zone-a", "")},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(slicetest.Service("web", c.service), c.pods)
			in.Shares = sharesOf(c.zones...)
			want := []pack.FamilyHints{{AddressType: discoveryv1.AddressTypeIPv4, Verdict: hints.Verdict{Hinted: c.want == "", Problem: c.want}}}
			if diff := gocmp.Diff(want, pack.Make(in).Topology); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

// kube-proxy follows zone hints only when every ready endpoint has one.
func TestMake_AutoHintsAllReadyEndpointsOrNone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := randomInput(t)
		if hints.ModeOf(in.Service) != hints.Auto || in.Service.DeletionTimestamp != nil {
			return
		}
		plan := pack.Make(in)
		after := apply(t, in.Slices, plan.Changes)
		for _, family := range plan.Topology {
			for _, slice := range after {
				if slice.AddressType != family.AddressType || slice.DeletionTimestamp != nil {
					continue
				}
				for _, endpoint := range slice.Endpoints {
					if hinted := endpoint.Hints != nil; hinted != (family.Hinted && *endpoint.Conditions.Ready) {
						t.Fatalf("endpoint %v has hints %v, although the verdict is %+v", endpoint.Addresses, endpoint.Hints, family.Verdict)
					}
				}
			}
		}
	})
}

// Of 300 endpoints in three slices, one is added, one becomes unready and one is removed. Each step
// writes one slice, and no hint of another slice changes.
func TestMake_AutoWritesNoSliceForHintsAlone(t *testing.T) {
	service := slicetest.Service("web", auto)
	pods := inZones(slicetest.Pods(0, 300), "zone-a", "zone-b", "zone-c")
	in := input(service, pods[:299])
	in.Shares = sharesOf("zone-a", "zone-b", "zone-c")
	in.Slices = apply(t, in.Slices, pack.Make(in).Changes)
	step := func(what string, pods []desired.Candidate) {
		t.Helper()
		in.Endpoints = desired.Resolve(service, pods)
		plan := pack.Make(in)
		if len(plan.Changes) != 1 {
			t.Errorf("%s: %d writes, want 1: %v", what, len(plan.Changes), reasons(plan))
		}
		in.Slices = apply(t, in.Slices, plan.Changes)
	}
	step("one is added", pods)
	slicetest.Unready(pods[7].Pod)
	step("one becomes unready", pods)
	step("one is removed", pods[1:])
}
