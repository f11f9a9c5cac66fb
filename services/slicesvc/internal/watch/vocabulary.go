package watch

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxWords bounds each part of a vocabulary, which a cluster with labels of its
// own for each pod would let grow for ever.
const maxWords = 1 << 14

// vocabulary lets the equal parts of many pods share their memory: pods of one
// template differ in little. What it returns must not be changed. One goroutine
// uses it.
type vocabulary struct {
	words      map[string]string
	labels     map[string]map[string]string
	owners     map[string][]metav1.OwnerReference
	containers map[string][]corev1.Container
}

func newVocabulary() *vocabulary {
	return &vocabulary{
		words:      map[string]string{},
		labels:     map[string]map[string]string{},
		owners:     map[string][]metav1.OwnerReference{},
		containers: map[string][]corev1.Container{},
	}
}

// ofPod replaces those parts of a stripped pod that other pods have, too.
func (v *vocabulary) ofPod(pod *corev1.Pod) {
	pod.Namespace = one(v.words, pod.Namespace, pod.Namespace)
	pod.Spec.NodeName = one(v.words, pod.Spec.NodeName, pod.Spec.NodeName)
	pod.Spec.Subdomain = one(v.words, pod.Spec.Subdomain, pod.Spec.Subdomain)
	pod.Status.Phase = corev1.PodPhase(one(v.words, string(pod.Status.Phase), string(pod.Status.Phase)))
	for i := range pod.Status.Conditions {
		condition := &pod.Status.Conditions[i]
		condition.Type = corev1.PodReady // the one that is kept
		condition.Status = corev1.ConditionStatus(one(v.words, string(condition.Status), string(condition.Status)))
	}
	if len(pod.Labels) > 0 {
		pod.Labels = one(v.labels, labelText(pod.Labels), pod.Labels)
	}
	if len(pod.OwnerReferences) > 0 {
		pod.OwnerReferences = one(v.owners, ownerText(&pod.OwnerReferences[0]), pod.OwnerReferences)
	}
	pod.Spec.Containers = v.ports(pod.Spec.Containers)
	pod.Spec.InitContainers = v.ports(pod.Spec.InitContainers)
}

// ports shares what namedPorts returns.
func (v *vocabulary) ports(containers []corev1.Container) []corev1.Container {
	if len(containers) == 0 {
		return nil
	}
	return one(v.containers, portText(&containers[0]), containers)
}

// one returns the first value of that text; if there is none, the value becomes it.
func one[T any](known map[string]T, text string, value T) T {
	if first, ok := known[text]; ok {
		return first
	}
	if len(known) >= maxWords {
		clear(known)
	}
	known[text] = value
	return value
}

// The texts of two parts are equal only if the parts are.

func labelText(labels map[string]string) string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&text, "%q%q", key, labels[key])
	}
	return text.String()
}

func ownerText(owner *metav1.OwnerReference) string {
	return fmt.Sprintf("%q%q%q%q", owner.APIVersion, owner.Kind, owner.Name, owner.UID)
}

func portText(container *corev1.Container) string {
	var text strings.Builder
	if container.RestartPolicy != nil {
		fmt.Fprintf(&text, "%q", *container.RestartPolicy)
	}
	for _, port := range container.Ports {
		fmt.Fprintf(&text, "/%q%q%d", port.Name, port.Protocol, port.ContainerPort)
	}
	return text.String()
}
