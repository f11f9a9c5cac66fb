package watch

import (
	corev1 "k8s.io/api/core/v1"
)

// maxWords bounds a vocabulary, which a cluster with labels of its own for each
// pod would let grow for ever.
const maxWords = 1 << 16

// vocabulary lets equal texts of many objects share their memory. One goroutine
// uses it.
type vocabulary struct{ words map[string]string }

func newVocabulary() *vocabulary { return &vocabulary{words: map[string]string{}} }

// one returns the one text of that value.
func (v *vocabulary) one(text string) string {
	if text == "" {
		return ""
	}
	if known, ok := v.words[text]; ok {
		return known
	}
	if len(v.words) >= maxWords {
		clear(v.words)
	}
	v.words[text] = text
	return text
}

// ofPod replaces the texts of a pod that other pods have, too.
func (v *vocabulary) ofPod(pod *corev1.Pod) {
	pod.Namespace = v.one(pod.Namespace)
	pod.Spec.NodeName = v.one(pod.Spec.NodeName)
	pod.Spec.Subdomain = v.one(pod.Spec.Subdomain)
	pod.Status.Phase = corev1.PodPhase(v.one(string(pod.Status.Phase)))
	labels := make(map[string]string, len(pod.Labels))
	for key, value := range pod.Labels {
		labels[v.one(key)] = v.one(value)
	}
	pod.Labels = labels
	for i := range pod.OwnerReferences {
		owner := &pod.OwnerReferences[i]
		owner.APIVersion, owner.Kind, owner.Name = v.one(owner.APIVersion), v.one(owner.Kind), v.one(owner.Name)
	}
	for i := range pod.Status.Conditions {
		condition := &pod.Status.Conditions[i]
		condition.Type = corev1.PodConditionType(v.one(string(condition.Type)))
		condition.Status = corev1.ConditionStatus(v.one(string(condition.Status)))
	}
}
