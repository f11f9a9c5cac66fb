package nodehealth

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Strayed tells whether a pod says that it is ready although nobody knows of its node. A kubelet that reports itself not ready
// lives, and speaks for its pods: what others write there it takes back at once, with the time of transition that it remembers.
func ReadyOnLostNode(node *corev1.Node, pod *corev1.Pod) bool {
	ready, said := conditionOf(node, corev1.NodeReady), PodReadyCondition(pod)
	return ready != nil && ready.Status == corev1.ConditionUnknown &&
		said != nil && said.Status == corev1.ConditionTrue && pod.Spec.NodeName == node.Name
}

// Unready is the Ready condition of a pod that strayed, as it shall be: what it does not name stays.
func NotReadyCondition(pod *corev1.Pod, at metav1.Time) corev1.PodCondition {
	condition := *PodReadyCondition(pod)
	condition.Status, condition.LastTransitionTime = corev1.ConditionFalse, at
	return condition
}

// PodReady returns the Ready condition of a pod, or nil.
func PodReadyCondition(pod *corev1.Pod) *corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
}
