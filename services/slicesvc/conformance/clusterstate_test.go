package conformance

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

const (
	namespace = "shop"
	managedBy = "endpointslice-controller.k8s.io"
	maxPods   = 24
	nodeNames = 4 // the last one never exists
)

// clusterState is everything that a sync reads. Its objects are replaced, never changed.
type clusterState struct {
	service *corev1.Service
	pods    []*corev1.Pod
	nodes   []*corev1.Node
	slices  []*discoveryv1.EndpointSlice
	limit   int
	created int // Pods so far
}

// newClusterState draws a state without slices. auto gives the Service the topology annotation.
func newClusterState(t *rapid.T, auto bool) clusterState {
	w := clusterState{limit: rapid.IntRange(1, 8).Draw(t, "limit")}
	w.service = drawService(t, auto)
	for i := range nodeNames - 1 {
		w.nodes = append(w.nodes, drawNode(t, i))
	}
	for range rapid.IntRange(0, maxPods).Draw(t, "pods") {
		w.addPod(t)
	}
	return w
}

func drawService(t *rapid.T, auto bool) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace, UID: "uid-of-web"},
		Spec: corev1.ServiceSpec{
			Selector:  map[string]string{"app": "web"},
			ClusterIP: rapid.SampledFrom([]string{"10.96.0.10", corev1.ClusterIPNone}).Draw(t, "cluster IP"),
			IPFamilies: rapid.SampledFrom([][]corev1.IPFamily{
				{corev1.IPv4Protocol}, {corev1.IPv6Protocol}, {corev1.IPv6Protocol, corev1.IPv4Protocol},
			}).Draw(t, "families"),
			PublishNotReadyAddresses: rapid.IntRange(0, 3).Draw(t, "publish not ready") == 0,
		},
	}
	service.Labels = rapid.SampledFrom([]map[string]string{
		nil, {"team": "a"}, {"team": "b"}, {discoveryv1.LabelManagedBy: "another-manager", "team": "a"},
	}).Draw(t, "labels")
	service.Spec.Ports = rapid.SampledFrom([][]corev1.ServicePort{
		nil,
		{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}},
		{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}},
	}).Draw(t, "ports")
	for i := range service.Spec.Ports {
		if service.Spec.Ports[i].Protocol == "" {
			service.Spec.Ports[i].Protocol = corev1.ProtocolTCP // the default of the API
		}
	}
	if auto {
		service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
	} else if mode := rapid.SampledFrom([]string{"", "", "PreferClose", "PreferSameZone", "PreferSameNode"}).Draw(t, "distribution"); mode != "" {
		service.Spec.TrafficDistribution = &mode
	}
	return service
}

func drawNode(t *rapid.T, i int) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{}}}
	if zone := rapid.SampledFrom([]string{"", "a", "b", "c", "a", "b", "c"}).Draw(t, "zone"); zone != "" {
		node.Labels[corev1.LabelTopologyZone] = zone
	}
	status := rapid.SampledFrom([]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse}).Draw(t, "node ready")
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(rapid.Int64Range(1, 4).Draw(t, "cores"), resource.DecimalSI)}
	return node
}

func (w *clusterState) addPod(t *rapid.T) {
	w.created++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("web-%d", w.created), Namespace: namespace, UID: types.UID(fmt.Sprintf("uid-%d", w.created)),
		Labels: map[string]string{"app": "web", "pod-template-hash": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "revision")},
	}}
	pod.Spec.NodeName = rapid.SampledFrom([]string{"", "node-0", "node-0", "node-1", "node-1", "node-2", "node-2", "node-3"}).Draw(t, "node")
	if rapid.IntRange(0, 5).Draw(t, "named") == 0 {
		pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, "web"
	}
	if number := rapid.SampledFrom([]int32{0, 8080, 8080, 9090}).Draw(t, "container port"); number != 0 {
		pod.Spec.Containers = []corev1.Container{{Name: "app", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: number, Protocol: corev1.ProtocolTCP}}}}
	}
	v4, v6 := fmt.Sprintf("10.0.%d.%d", w.created/250, w.created%250+1), fmt.Sprintf("fd00::%x", w.created)
	for _, ip := range rapid.SampledFrom([][]string{nil, {v4}, {v6}, {v4, v6}, {v4, v6}, {v6, v4}}).Draw(t, "addresses") {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(pod.Status.PodIPs) > 0 {
		pod.Status.PodIP = pod.Status.PodIPs[0].IP
	}
	w.pods = append(w.pods, withState(t, pod))
}

// withState draws the changing fields of a Pod.
func withState(t *rapid.T, pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{
		corev1.PodPending, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed,
	}).Draw(t, "phase")
	status := rapid.SampledFrom([]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}).Draw(t, "ready")
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	if pod.DeletionTimestamp == nil && rapid.IntRange(0, 4).Draw(t, "terminates") == 0 {
		now := metav1.NewTime(time.Unix(1_700_000_000, 0))
		pod.DeletionTimestamp = &now
	}
	return pod
}

// step changes a part of the state.
func (w *clusterState) step(t *rapid.T, auto bool) {
	for range rapid.IntRange(0, 6).Draw(t, "changes") {
		switch what := rapid.IntRange(0, 11).Draw(t, "change"); {
		case what < 3 && len(w.pods) > 0:
			i := w.anyPod(t)
			w.pods = append(w.pods[:i:i], w.pods[i+1:]...)
		case what < 6 && len(w.pods) < maxPods:
			w.addPod(t)
		case what < 9 && len(w.pods) > 0:
			i := w.anyPod(t)
			w.pods = append(append(w.pods[:i:i], withState(t, w.pods[i])), w.pods[i+1:]...)
		case what == 9:
			i := rapid.IntRange(0, len(w.nodes)-1).Draw(t, "which node")
			w.nodes = append(append(w.nodes[:i:i], drawNode(t, i)), w.nodes[i+1:]...)
		case what == 10 && rapid.IntRange(0, 3).Draw(t, "replace Service") == 0:
			before := w.service.Spec.ClusterIP
			w.service = drawService(t, auto)
			w.service.Spec.ClusterIP = before // it is immutable
		case len(w.slices) > 0:
			w.editSlice(t)
		}
	}
}

func (w *clusterState) anyPod(t *rapid.T) int {
	return rapid.IntRange(0, len(w.pods)-1).Draw(t, "which pod")
}

// editSlice changes the endpoints, the labels or the owner of a slice, or deletes it, as another
// writer. That writer changes readiness and hints together: upstream leaves an endpoint as it is if
// it has the state of its Pod and a hint too many.
func (w *clusterState) editSlice(t *rapid.T) {
	i := rapid.IntRange(0, len(w.slices)-1).Draw(t, "which slice")
	slice := w.slices[i].DeepCopy()
	others := append(w.slices[:i:i], w.slices[i+1:]...)
	what := rapid.IntRange(0, 5).Draw(t, "edit")
	if n := len(slice.Endpoints); n > 0 {
		at := rapid.IntRange(0, n-1).Draw(t, "which endpoint")
		switch {
		case what == 0 && n > 1:
			slice.Endpoints = append(slice.Endpoints[:at], slice.Endpoints[at+1:]...)
		case what == 1 && n < w.limit:
			slice.Endpoints = append(slice.Endpoints, *slice.Endpoints[at].DeepCopy())
		case what == 2:
			ready := !*slice.Endpoints[at].Conditions.Ready
			slice.Endpoints[at].Conditions.Ready, slice.Endpoints[at].Hints = &ready, nil
		case what == 3:
			slice.OwnerReferences[0].UID = "uid-of-another-owner"
		}
	}
	switch what {
	case 4:
		slice.Labels["team"] = "c"
	case 5:
		w.slices = others
		return
	}
	w.slices = append(others, slice)
}
