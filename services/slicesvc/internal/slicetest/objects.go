package slicetest

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

const (
	// Namespace is the namespace of all objects unless a test changes it.
	Namespace = "shop"
	// ManagedBy is the managed-by label of slices made here.
	ManagedBy = "slices.example.com"
)

// CreationTime returns when the objects were created.
func CreationTime() time.Time { return time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC) }

// Service returns an IPv4 Service with selector app=<name> and port http, 80 to 8080.
func Service(name string, changes ...func(*corev1.Service)) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			Namespace:         Namespace,
			UID:               types.UID("uid-of-" + name),
			CreationTimestamp: metav1.NewTime(CreationTime()),
		},
		Spec: corev1.ServiceSpec{
			ClusterIP:  "10.96.0.10",
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Selector:   map[string]string{"app": name},
			Ports:      []corev1.ServicePort{Port("http", 80, intstr.FromInt32(8080))},
		},
	}
	for _, change := range changes {
		change(service)
	}
	return service
}

// Port returns a TCP port of a Service.
func Port(name string, number int32, target intstr.IntOrString) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: number, TargetPort: target}
}

// Pod returns a running and ready Pod with label app=web on node-a.
func Pod(name, ip string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      name,
			Namespace: Namespace,
			UID:       types.UID("uid-of-" + name),
			Labels:    map[string]string{"app": "web"},
		},
		Spec: corev1.PodSpec{NodeName: "node-a"},
		Status: corev1.PodStatus{
			Phase:  corev1.PodRunning,
			PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{
				Type:               corev1.PodReady,
				Status:             corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(CreationTime().Add(time.Minute)),
			}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// Unready sets the Ready condition of a Pod to False.
func Unready(pod *corev1.Pod) { pod.Status.Conditions[0].Status = corev1.ConditionFalse }

// Terminating marks a Pod as being deleted.
func Terminating(pod *corev1.Pod) {
	now := metav1.NewTime(CreationTime().Add(time.Hour))
	pod.DeletionTimestamp = &now
}

// Candidate returns a Pod as a candidate on a known Node in zone-a.
func Candidate(pod *corev1.Pod) desired.Candidate {
	return desired.Candidate{Pod: pod, NodeKnown: true, Zone: "zone-a"}
}

// Pods returns the candidates web-<from> to web-<to-1>, each with its own address.
func Pods(from, to int) []desired.Candidate {
	candidates := make([]desired.Candidate, 0, to-from)
	for i := from; i < to; i++ {
		candidates = append(candidates, Candidate(Pod(fmt.Sprintf("web-%d", i), Address(i))))
	}
	return candidates
}

// Address returns the i-th IPv4 address.
func Address(i int) string { return fmt.Sprintf("10.1.%d.%d", i/250, i%250+1) }

// Slice returns a slice of a Service as a kube-apiserver has it, with the endpoints of the
// candidates.
func Slice(service *corev1.Service, name string, candidates []desired.Candidate, changes ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			Namespace:       service.Namespace,
			UID:             types.UID("uid-of-" + name),
			ResourceVersion: "7",
			Labels: map[string]string{
				discoveryv1.LabelServiceName: service.Name,
				discoveryv1.LabelManagedBy:   ManagedBy,
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(service, corev1.SchemeGroupVersion.WithKind("Service"))},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{},
		Ports:       []discoveryv1.EndpointPort{},
	}
	if family := desired.Resolve(service, candidates).Families[0]; len(family.Groups) > 0 {
		slice.AddressType, slice.Ports = family.AddressType, family.Groups[0].Ports
		for _, endpoint := range family.Groups[0].Endpoints {
			slice.Endpoints = append(slice.Endpoints, endpoint.Object())
		}
	}
	for _, change := range changes {
		change(slice)
	}
	return slice
}

// DrawWrites returns the first writes of a plan in an order in which the controller may make them:
// changes that supersede come last, the others at the same time.
func DrawWrites(t *rapid.T, plan pack.Plan, most int) []pack.Change {
	var independent, dependent []pack.Change
	for _, change := range plan.Changes {
		if change.Supersedes() {
			dependent = append(dependent, change)
		} else {
			independent = append(independent, change)
		}
	}
	if len(independent) > 1 {
		independent = rapid.Permutation(independent).Draw(t, "order")
	}
	all := slices.Concat(independent, dependent)
	return all[:min(most, len(all))]
}
