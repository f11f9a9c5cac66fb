package nodehealth

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons and messages are those of the node-lifecycle controller, because other programs look for
// them.
const (
	reasonUnknown  = "NodeStatusUnknown"
	messageUnknown = "Kubelet stopped posting node status."
	reasonNever    = "NodeStatusNeverUpdated"
	messageNever   = "Kubelet never posted node status."
)

// kubeletConditions are the conditions that become Unknown when the kubelet is silent.
// NetworkUnavailable is not one of them, because the kubelet does not set it.
func kubeletConditions() []corev1.NodeConditionType {
	return []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}
}

// ConditionOf returns a condition of a Node, or nil.
func ConditionOf(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// isMarkedUnknown returns whether all kubeletConditions are Unknown.
func isMarkedUnknown(node *corev1.Node) bool {
	return !slices.ContainsFunc(kubeletConditions(), func(kind corev1.NodeConditionType) bool {
		condition := ConditionOf(node, kind)
		return condition == nil || condition.Status != corev1.ConditionUnknown
	})
}

// unknownConditions returns the conditions that must change to mark a Node Unknown, as they shall
// be.
func unknownConditions(node *corev1.Node, at time.Time) []corev1.NodeCondition {
	var changed []corev1.NodeCondition
	for _, kind := range kubeletConditions() {
		current := ConditionOf(node, kind)
		next := corev1.NodeCondition{
			Type: kind, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(at),
			Reason: reasonNever, Message: messageNever, LastHeartbeatTime: node.CreationTimestamp,
		}
		switch {
		case current == nil:
		case current.Status == corev1.ConditionUnknown:
			continue
		default:
			next.Reason, next.Message, next.LastHeartbeatTime = reasonUnknown, messageUnknown, current.LastHeartbeatTime
		}
		changed = append(changed, next)
	}
	return changed
}

// ReadyOnUnreadyNode returns whether a Pod is Ready while the Ready condition of its Node is False
// or Unknown.
func ReadyOnUnreadyNode(node *corev1.Node, pod *corev1.Pod) bool {
	ofNode, ofPod := ConditionOf(node, corev1.NodeReady), PodReadyCondition(pod)
	return ofNode != nil && ofNode.Status != corev1.ConditionTrue &&
		ofPod != nil && ofPod.Status == corev1.ConditionTrue && pod.Spec.NodeName == node.Name
}

// NotReadyCondition returns the Ready condition of a Pod with status False. The Pod must have one.
// Other fields stay.
func NotReadyCondition(pod *corev1.Pod, at metav1.Time) corev1.PodCondition {
	condition := *PodReadyCondition(pod)
	condition.Status, condition.LastTransitionTime = corev1.ConditionFalse, at
	return condition
}

// PodReadyCondition returns the Ready condition of a Pod, or nil.
func PodReadyCondition(pod *corev1.Pod) *corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
}
