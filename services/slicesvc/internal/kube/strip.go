package kube

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
)

// The strip functions return a new object with only the fields that slices are made from. They are
// idempotent. Without them the cache would be about ten times as large: most of a Pod is what it
// runs, most of a Node its status.

func stripMeta(meta *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:              meta.Name,
		Namespace:         meta.Namespace,
		UID:               meta.UID,
		ResourceVersion:   meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp,
		DeletionTimestamp: meta.DeletionTimestamp,
		Labels:            meta.Labels,
	}
}

func stripPod(pod *corev1.Pod) corev1.Pod {
	stripped := corev1.Pod{
		ObjectMeta: stripMeta(&pod.ObjectMeta),
		Spec: corev1.PodSpec{
			NodeName:  pod.Spec.NodeName,
			Hostname:  pod.Spec.Hostname,
			Subdomain: pod.Spec.Subdomain,
		},
		Status: corev1.PodStatus{
			Phase:  pod.Status.Phase,
			PodIPs: pod.Status.PodIPs,
		},
	}
	stripped.DeletionGracePeriodSeconds = pod.DeletionGracePeriodSeconds
	stripped.ManagedFields = lastWriteTime(pod.ManagedFields)
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil {
		stripped.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: controller.APIVersion,
			Kind:       controller.Kind,
			Name:       controller.Name,
			UID:        controller.UID,
			Controller: controller.Controller,
		}}
	}
	stripped.Spec.Containers = namedPorts(pod.Spec.Containers, func(*corev1.Container) bool { return true })
	stripped.Spec.InitContainers = namedPorts(pod.Spec.InitContainers, desired.Sidecar)
	if ready := desired.ReadyCondition(pod); ready != nil {
		stripped.Status.Conditions = []corev1.PodCondition{{
			Type:               ready.Type,
			Status:             ready.Status,
			LastTransitionTime: ready.LastTransitionTime,
		}}
	}
	return stripped
}

// lastWriteTime keeps only the time of the last write, nil if it is unknown.
func lastWriteTime(fields []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	newest := NewestManager(fields)
	if len(newest) == 0 || newest[0].Time == nil {
		return nil
	}
	return []metav1.ManagedFieldsEntry{{Time: newest[0].Time}}
}

// namedPorts returns one container with the named ports of all selected containers, in their order,
// or nil if there are none. A Service can refer to no other ports by name.
func namedPorts(containers []corev1.Container, selected func(*corev1.Container) bool) []corev1.Container {
	var all corev1.Container
	for i := range containers {
		container := &containers[i]
		if !selected(container) {
			continue
		}
		for _, port := range container.Ports {
			if port.Name != "" {
				all.RestartPolicy = container.RestartPolicy // it marks a sidecar
				all.Ports = append(all.Ports, corev1.ContainerPort{
					Name:          port.Name,
					Protocol:      port.Protocol,
					ContainerPort: port.ContainerPort,
				})
			}
		}
	}
	if all.Ports == nil {
		return nil
	}
	return []corev1.Container{all}
}

// hintLabels returns the labels of a Node that decide about hints.
func hintLabels() []string {
	return []string{
		corev1.LabelTopologyZone,
		"node-role.kubernetes.io/control-plane",
		"node-role.kubernetes.io/master",
	}
}

func stripNode(node *corev1.Node) *corev1.Node {
	stripped := &corev1.Node{ObjectMeta: stripMeta(&node.ObjectMeta)}
	stripped.Labels = selectKeys(node.Labels, hintLabels())
	if cpu, ok := node.Status.Allocatable[corev1.ResourceCPU]; ok {
		stripped.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: cpu}
	}
	for i := range node.Status.Conditions {
		if condition := &node.Status.Conditions[i]; condition.Type == corev1.NodeReady {
			stripped.Status.Conditions = append(stripped.Status.Conditions, corev1.NodeCondition{Type: condition.Type, Status: condition.Status})
		}
	}
	return stripped
}

func stripService(service *corev1.Service) *corev1.Service {
	stripped := &corev1.Service{
		ObjectMeta: stripMeta(&service.ObjectMeta),
		Spec: corev1.ServiceSpec{
			Type:                     service.Spec.Type,
			Ports:                    service.Spec.Ports,
			Selector:                 service.Spec.Selector,
			ClusterIP:                service.Spec.ClusterIP,
			IPFamilies:               service.Spec.IPFamilies,
			PublishNotReadyAddresses: service.Spec.PublishNotReadyAddresses,
			TrafficDistribution:      service.Spec.TrafficDistribution,
		},
	}
	stripped.Annotations = selectKeys(service.Annotations, []string{corev1.AnnotationTopologyMode, corev1.DeprecatedAnnotationTopologyAwareHints})
	return stripped
}

// selectKeys returns nil if the map has none of the keys.
func selectKeys(from map[string]string, keys []string) map[string]string {
	var selected map[string]string
	for _, key := range keys {
		if value, ok := from[key]; ok {
			if selected == nil {
				selected = map[string]string{}
			}
			selected[key] = value
		}
	}
	return selected
}

// stripSlice keeps everything that a later update must send back unchanged, and the last writer.
func stripSlice(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	stripped := *slice
	stripped.ManagedFields = keptManagers(&slice.ObjectMeta)
	return &stripped
}

// keptManagers returns the managed fields that are used of a slice: its last writer, and of a
// mirrored slice also which annotations the programs that mirror have set.
func keptManagers(slice *metav1.ObjectMeta) []metav1.ManagedFieldsEntry {
	newest := NewestManager(slice.ManagedFields)
	if slice.Labels[discoveryv1.LabelManagedBy] == mirror.ManagedBy {
		return append(newest, mirror.AnnotationFields(slice.ManagedFields)...)
	}
	return newest
}

// stripEndpoints keeps what mirrored slices are made from, and the last writer.
func stripEndpoints(object *corev1.Endpoints) *corev1.Endpoints {
	return &corev1.Endpoints{ObjectMeta: stripEndpointsMeta(&object.ObjectMeta), Subsets: object.Subsets}
}

// stripEndpointsMeta leaves out the annotation of kubectl, which repeats the whole object and is
// not mirrored.
func stripEndpointsMeta(meta *metav1.ObjectMeta) metav1.ObjectMeta {
	stripped := stripMeta(meta)
	stripped.ManagedFields = NewestManager(meta.ManagedFields)
	stripped.Annotations = meta.Annotations
	if _, applied := meta.Annotations[corev1.LastAppliedConfigAnnotation]; applied {
		stripped.Annotations = maps.Clone(meta.Annotations)
		delete(stripped.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	return stripped
}

// NewestManager keeps the last writer and its time, which is enough to name another writer.
// kube-apiserver does not need the managed fields back: it keeps its own.
func NewestManager(fields []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var newest *metav1.ManagedFieldsEntry
	for i := range fields {
		entry := &fields[i]
		if newest == nil || (entry.Time != nil && (newest.Time == nil || !entry.Time.Before(newest.Time))) {
			newest = entry
		}
	}
	if newest == nil {
		return nil
	}
	return []metav1.ManagedFieldsEntry{{Manager: newest.Manager, Operation: newest.Operation, Time: newest.Time}}
}
