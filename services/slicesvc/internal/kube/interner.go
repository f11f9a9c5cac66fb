package kube

import (
	"encoding/binary"
	"slices"

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
	// text and keys are scratch space.
	text []byte
	keys []string
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
	pod.Namespace = v.word(pod.Namespace)
	pod.Spec.NodeName = v.word(pod.Spec.NodeName)
	pod.Spec.Subdomain = v.word(pod.Spec.Subdomain)
	pod.Status.Phase = corev1.PodPhase(v.word(string(pod.Status.Phase)))
	for i := range pod.Status.Conditions {
		condition := &pod.Status.Conditions[i]
		condition.Type = corev1.PodReady // the one that is kept
		condition.Status = corev1.ConditionStatus(v.word(string(condition.Status)))
	}
	if len(pod.Labels) > 0 {
		v.labelText(pod.Labels)
		pod.Labels = one(v.labels, v.text, pod.Labels)
	}
	if len(pod.OwnerReferences) > 0 {
		v.ownerText(&pod.OwnerReferences[0])
		pod.OwnerReferences = one(v.owners, v.text, pod.OwnerReferences)
	}
	pod.Spec.Containers = v.ports(pod.Spec.Containers)
	pod.Spec.InitContainers = v.ports(pod.Spec.InitContainers)
}

func (v *vocabulary) word(word string) string {
	v.text = append(v.text[:0], word...)
	return one(v.words, v.text, word)
}

// ports shares what namedPorts returns.
func (v *vocabulary) ports(containers []corev1.Container) []corev1.Container {
	if len(containers) == 0 {
		return nil
	}
	v.portText(&containers[0])
	return one(v.containers, v.text, containers)
}

// one returns the first value of that text; if there is none, the value becomes it.
func one[T any](known map[string]T, text []byte, value T) T {
	if first, ok := known[string(text)]; ok {
		return first
	}
	if len(known) >= maxWords {
		clear(known)
	}
	known[string(text)] = value
	return value
}

// The texts of two parts are equal only if the parts are: each word in them has
// its length in front.

func (v *vocabulary) labelText(labels map[string]string) {
	v.keys = v.keys[:0]
	for key := range labels {
		v.keys = append(v.keys, key)
	}
	slices.Sort(v.keys)
	v.text = v.text[:0]
	for _, key := range v.keys {
		v.text = appendWord(appendWord(v.text, key), labels[key])
	}
}

func (v *vocabulary) ownerText(owner *metav1.OwnerReference) {
	v.text = v.text[:0]
	for _, word := range []string{owner.APIVersion, owner.Kind, owner.Name, string(owner.UID)} {
		v.text = appendWord(v.text, word)
	}
}

func (v *vocabulary) portText(container *corev1.Container) {
	v.text = v.text[:0]
	if container.RestartPolicy != nil {
		v.text = appendWord(append(v.text, 1), string(*container.RestartPolicy))
	} else {
		v.text = append(v.text, 0)
	}
	for _, port := range container.Ports {
		v.text = appendWord(appendWord(v.text, port.Name), string(port.Protocol))
		v.text = binary.BigEndian.AppendUint32(v.text, uint32(port.ContainerPort))
	}
}

func appendWord(to []byte, word string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(word))), word...)
}
