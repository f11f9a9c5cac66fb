package nodeobject

import (
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// stripping makes a TransformFunc of a function for one kind. What is not of the kind passes unchanged.
func stripping[T any](strip func(T) T) cache.TransformFunc {
	return func(object any) (any, error) {
		if typed, ok := object.(T); ok {
			return strip(typed), nil
		}
		return object, nil
	}
}

// stripNode returns a new Node with the given labels, conditions and taints.
func stripNode(node *corev1.Node, labels []string) *corev1.Node {
	stripped := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, CreationTimestamp: node.CreationTimestamp,
		},
		Spec: corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: slices.Clone(node.Spec.Taints)},
	}
	for _, condition := range node.Status.Conditions {
		if slices.Contains(keptConditions(), condition.Type) {
			stripped.Status.Conditions = append(stripped.Status.Conditions, condition)
		}
	}
	for _, label := range labels {
		if value, has := node.Labels[label]; has {
			if stripped.Labels == nil {
				stripped.Labels = map[string]string{}
			}
			stripped.Labels[label] = value
		}
	}
	return stripped
}

func keptConditions() []corev1.NodeConditionType {
	return []corev1.NodeConditionType{
		corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable,
	}
}

func stripLease(lease *coordinationv1.Lease) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: lease.Name, Namespace: lease.Namespace, ResourceVersion: lease.ResourceVersion},
		Spec: coordinationv1.LeaseSpec{
			RenewTime: lease.Spec.RenewTime, LeaseDurationSeconds: lease.Spec.LeaseDurationSeconds, HolderIdentity: lease.Spec.HolderIdentity,
		},
	}
}

func stripPod(pod *corev1.Pod) *corev1.Pod {
	stripped := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion},
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName},
	}
	if ready := nodehealth.PodReady(pod); ready != nil {
		stripped.Status.Conditions = []corev1.PodCondition{*ready}
	}
	return stripped
}
