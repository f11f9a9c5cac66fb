package nodehealth

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What upstream's controller writes for nodes that are not heard, so that whoever looks for it finds it.
const (
	reasonUnknown  = "NodeStatusUnknown"
	messageUnknown = "Kubelet stopped posting node status."
	reasonNever    = "NodeStatusNeverUpdated"
	messageNever   = "Kubelet never posted node status."
)

// silenced are the conditions that nobody knows any more when the kubelet is silent. NetworkUnavailable is not among them,
// because it is not the kubelet's.
func silenced() []corev1.NodeConditionType {
	return []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}
}

func conditionOf(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

func allUnknown(node *corev1.Node) bool {
	return !slices.ContainsFunc(silenced(), func(kind corev1.NodeConditionType) bool {
		condition := conditionOf(node, kind)
		return condition == nil || condition.Status != corev1.ConditionUnknown
	})
}

// unknownConditions are the conditions that have to change for the node to be declared, whole as they shall be.
func unknownConditions(node *corev1.Node, at time.Time) []corev1.NodeCondition {
	var changed []corev1.NodeCondition
	for _, kind := range silenced() {
		current := conditionOf(node, kind)
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
