package nodehealth

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Strayed tells whether a pod says that it is ready although its node is not. Where the kubelet lives and reports itself not
// ready, it has the last word: what it said of the pod after that stays. Both times are its own, so its clock does not matter.
func Strayed(node *corev1.Node, pod *corev1.Pod) bool {
	ready, said := conditionOf(node, corev1.NodeReady), PodReady(pod)
	if ready == nil || said == nil || said.Status != corev1.ConditionTrue || pod.Spec.NodeName != node.Name {
		return false
	}
	switch ready.Status {
	case corev1.ConditionUnknown:
		return true
	case corev1.ConditionFalse:
		return !said.LastTransitionTime.After(ready.LastTransitionTime.Time)
	}
	return false
}

// Unready is the Ready condition of a pod that strayed, as it shall be.
func Unready(pod *corev1.Pod, at metav1.Time) corev1.PodCondition {
	condition := *PodReady(pod)
	condition.Status, condition.LastTransitionTime = corev1.ConditionFalse, at
	return condition
}

// PodReady returns the Ready condition of a pod, or nil.
func PodReady(pod *corev1.Pod) *corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
}
