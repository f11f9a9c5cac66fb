package pack_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// randomInput draws the input of a plan: a Service, Pods of every kind, and slices that earlier
// plans left and other writers changed.
func randomInput(t *rapid.T) pack.Input {
	service := drawService(t)
	candidates := drawCandidates(t)
	random := snapshot(service, candidates, drawSlices(t, service, candidates)...)
	random.Shares = drawShares(t)
	return pack.Input{
		Snapshot:   random,
		Owner:      pack.ServiceOwner(service),
		Endpoints:  desired.Resolve(service, candidates),
		Limit:      rapid.IntRange(1, 8).Draw(t, "limit"),
		ManagedBy:  slicetest.ManagedBy,
		ChangeTime: slicetest.CreationTime(),
	}
}

func drawShares(t *rapid.T) hints.Shares {
	var topology hints.Topology
	for _, zone := range []string{"zone-a", "zone-b"}[:rapid.IntRange(0, 2).Draw(t, "zones with nodes")] {
		topology.Add(hints.Node{Zone: zone, MilliCPU: 1000, Eligible: true})
	}
	return topology.Shares()
}

func drawService(t *rapid.T) *corev1.Service {
	return slicetest.Service("web", func(service *corev1.Service) {
		service.Spec.IPFamilies = rapid.SampledFrom([][]corev1.IPFamily{
			{corev1.IPv4Protocol},
			{corev1.IPv6Protocol},
			{corev1.IPv4Protocol, corev1.IPv6Protocol},
			nil,
		}).Draw(t, "families")
		service.Spec.ClusterIP = rapid.SampledFrom([]string{"10.96.0.10", corev1.ClusterIPNone, ""}).Draw(t, "clusterIP")
		service.Spec.PublishNotReadyAddresses = rapid.Bool().Draw(t, "publish")
		service.Spec.Ports = rapid.SampledFrom([][]corev1.ServicePort{
			nil,
			{slicetest.Port("http", 80, intstr.FromInt32(8080))},
			{slicetest.Port("http", 80, intstr.FromString("http")), slicetest.Port("metrics", 90, intstr.FromString("metrics"))},
		}).Draw(t, "ports")
		service.Labels = rapid.SampledFrom([]map[string]string{nil, {"team": "a"}, {discoveryv1.LabelManagedBy: "me"}}).Draw(t, "labels")
		switch distribution := rapid.SampledFrom([]string{"", "", "Auto", "PreferClose", "PreferSameNode"}).Draw(t, "topology"); distribution {
		case "":
		case "Auto":
			service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
		default:
			service.Spec.TrafficDistribution = &distribution
		}
		if rapid.IntRange(0, 9).Draw(t, "terminating") == 0 {
			now := metav1.NewTime(slicetest.CreationTime())
			service.DeletionTimestamp = &now
		}
	})
}

func drawCandidates(t *rapid.T) []desired.Candidate {
	count := rapid.IntRange(0, 30).Draw(t, "pods")
	candidates := make([]desired.Candidate, 0, count)
	for i := range count {
		candidates = append(candidates, drawCandidate(t, i))
	}
	return candidates
}

func drawCandidate(t *rapid.T, i int) desired.Candidate {
	pod := slicetest.Pod(fmt.Sprintf("web-%d", i), slicetest.Address(i), func(pod *corev1.Pod) {
		pod.Status.PodIPs = rapid.SampledFrom([][]corev1.PodIP{
			{{IP: slicetest.Address(i)}},
			{{IP: slicetest.Address(i)}, {IP: fmt.Sprintf("fd00::%x", i+1)}},
			{{IP: fmt.Sprintf("fd00::%x", i+1)}},
			{{IP: "10.9.9.9"}},
			{{IP: "no address"}},
			nil,
		}).Draw(t, "ips")
		pod.Labels["pod-template-hash"] = []string{"even", "odd"}[i%2]
		pod.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodRunning, corev1.PodRunning, corev1.PodFailed}).Draw(t, "phase")
		pod.Spec.Containers = drawContainers(t)
		if rapid.Bool().Draw(t, "unready") {
			slicetest.Unready(pod)
		}
		if rapid.IntRange(0, 4).Draw(t, "deleted") == 0 {
			slicetest.Terminating(pod)
		}
		if rapid.Bool().Draw(t, "hostname") {
			pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, "web"
		}
	})
	if rapid.IntRange(0, 4).Draw(t, "node") == 0 {
		return desired.Candidate{Pod: pod}
	}
	return desired.Candidate{
		Pod:       pod,
		NodeKnown: true,
		Zone:      rapid.SampledFrom([]string{"", "zone-a", "zone-b"}).Draw(t, "zone"),
	}
}

func drawContainers(t *rapid.T) []corev1.Container {
	named := func(name string, number int32) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, Protocol: corev1.ProtocolTCP, ContainerPort: number}
	}
	return rapid.SampledFrom([][]corev1.Container{
		nil,
		{{Ports: []corev1.ContainerPort{named("http", 8080)}}},
		{{Ports: []corev1.ContainerPort{named("http", 8081), named("metrics", 9090)}}},
	}).Draw(t, "containers")
}

// drawSlices makes slices as an earlier plan left them, for other Pods and another limit, and lets
// another writer change them.
func drawSlices(t *rapid.T, service *corev1.Service, candidates []desired.Candidate) []*discoveryv1.EndpointSlice {
	var existing []*discoveryv1.EndpointSlice
	live := withoutDeletion(service)
	before := pack.Make(pack.Input{
		Snapshot:  snapshot(live, nil),
		Owner:     pack.ServiceOwner(live),
		Endpoints: desired.Resolve(service, drawSubset(t, candidates)),
		Limit:     rapid.IntRange(1, 12).Draw(t, "limit before"),
		ManagedBy: slicetest.ManagedBy,
	})
	for _, change := range before.Changes {
		existing = append(existing, tamper(t, stored(change.Slice)))
	}
	return existing
}

func drawSubset(t *rapid.T, candidates []desired.Candidate) []desired.Candidate {
	var subset []desired.Candidate
	for _, candidate := range candidates {
		if rapid.Bool().Draw(t, "was there") {
			subset = append(subset, candidate)
		}
	}
	return append(subset, slicetest.Pods(100, 100+rapid.IntRange(0, 10).Draw(t, "gone"))...)
}

func withoutDeletion(service *corev1.Service) *corev1.Service {
	live := service.DeepCopy()
	live.DeletionTimestamp = nil
	return live
}

// tamper changes a slice as another writer may.
func tamper(t *rapid.T, slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	switch rapid.IntRange(0, 11).Draw(t, "tamper") {
	case 0:
		slice.OwnerReferences[0].UID = "an-earlier-service"
	case 1:
		slice.Labels["unexpected"] = "yes"
	case 2:
		now := metav1.NewTime(slicetest.CreationTime())
		slice.DeletionTimestamp = &now
	case 3:
		slice.Endpoints = append(slice.Endpoints, slice.Endpoints...)
	case 4:
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.66.66.66"}})
	case 5:
		for i := range slice.Endpoints {
			slice.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-z"}}}
		}
	case 6:
		slice.Endpoints = nil
	case 7:
		slice.Annotations = map[string]string{"note": "keep"}
	}
	return slice
}

// stored returns a slice with the fields that a kube-apiserver sets.
func stored(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	slice = slice.DeepCopy()
	slice.UID = types.UID("uid-of-" + slice.Name)
	slice.ResourceVersion = "1"
	return slice
}
