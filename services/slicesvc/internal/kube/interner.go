package kube

import (
	"encoding/binary"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxInterned bounds each map of an interner: a cluster may give every Pod its own labels.
const maxInterned = 1 << 14

// interner lets equal parts of Pods share memory: Pods of one template differ in little. Interned
// values must not be changed. One goroutine uses an interner. Package unique cannot intern maps and
// slices.
type interner struct {
	strings    map[string]string
	labels     map[string]map[string]string
	owners     map[string][]metav1.OwnerReference
	containers map[string][]corev1.Container
	// key and sortedLabels are scratch space.
	key          []byte
	sortedLabels []string
}

func newInterner() *interner {
	return &interner{
		strings:    map[string]string{},
		labels:     map[string]map[string]string{},
		owners:     map[string][]metav1.OwnerReference{},
		containers: map[string][]corev1.Container{},
	}
}

// internPod replaces the parts of a stripped Pod that an earlier Pod had.
func (n *interner) internPod(pod *corev1.Pod) {
	pod.Namespace = n.internString(pod.Namespace)
	pod.Spec.NodeName = n.internString(pod.Spec.NodeName)
	pod.Spec.Subdomain = n.internString(pod.Spec.Subdomain)
	pod.Status.Phase = corev1.PodPhase(n.internString(string(pod.Status.Phase)))
	for i := range pod.Status.Conditions {
		condition := &pod.Status.Conditions[i]
		condition.Type = corev1.PodReady // stripPod keeps no other
		condition.Status = corev1.ConditionStatus(n.internString(string(condition.Status)))
	}
	if len(pod.Labels) > 0 {
		n.labelKey(pod.Labels)
		pod.Labels = intern(n.labels, n.key, pod.Labels)
	}
	if len(pod.OwnerReferences) > 0 {
		n.ownerKey(&pod.OwnerReferences[0])
		pod.OwnerReferences = intern(n.owners, n.key, pod.OwnerReferences)
	}
	pod.Spec.Containers = n.internPorts(pod.Spec.Containers)
	pod.Spec.InitContainers = n.internPorts(pod.Spec.InitContainers)
}

func (n *interner) internString(value string) string {
	n.key = append(n.key[:0], value...)
	return intern(n.strings, n.key, value)
}

// internPorts interns a result of namedPorts.
func (n *interner) internPorts(containers []corev1.Container) []corev1.Container {
	if len(containers) == 0 {
		return nil
	}
	n.portKey(&containers[0])
	return intern(n.containers, n.key, containers)
}

// intern returns the first value that was passed with an equal key.
func intern[T any](known map[string]T, key []byte, value T) T {
	if first, ok := known[string(key)]; ok {
		return first
	}
	if len(known) >= maxInterned {
		clear(known)
	}
	known[string(key)] = value
	return value
}

// Keys are equal only if their values are: each string in a key has its length in front.

func (n *interner) labelKey(labels map[string]string) {
	n.sortedLabels = n.sortedLabels[:0]
	for key := range labels {
		n.sortedLabels = append(n.sortedLabels, key)
	}
	slices.Sort(n.sortedLabels)
	n.key = n.key[:0]
	for _, key := range n.sortedLabels {
		n.key = appendString(appendString(n.key, key), labels[key])
	}
}

func (n *interner) ownerKey(owner *metav1.OwnerReference) {
	n.key = n.key[:0]
	for _, value := range []string{owner.APIVersion, owner.Kind, owner.Name, string(owner.UID)} {
		n.key = appendString(n.key, value)
	}
}

func (n *interner) portKey(container *corev1.Container) {
	n.key = n.key[:0]
	if container.RestartPolicy != nil {
		n.key = appendString(append(n.key, 1), string(*container.RestartPolicy))
	} else {
		n.key = append(n.key, 0)
	}
	for _, port := range container.Ports {
		n.key = appendString(appendString(n.key, port.Name), string(port.Protocol))
		n.key = binary.BigEndian.AppendUint32(n.key, uint32(port.ContainerPort))
	}
}

func appendString(to []byte, value string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(value))), value...)
}
