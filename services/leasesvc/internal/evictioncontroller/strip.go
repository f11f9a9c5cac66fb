package evictioncontroller

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
)

// strip returns what is kept of an object. What is neither Node nor pod passes unchanged.
func strip(object any) (any, error) {
	switch typed := object.(type) {
	case *corev1.Node:
		return stripNode(typed), nil
	case *corev1.Pod:
		return tenantOf(typed), nil
	}
	return object, nil
}

func stripNode(node *corev1.Node) *corev1.Node {
	stripped := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}}
	for _, taint := range node.Spec.Taints {
		if taint.Effect == corev1.TaintEffectNoExecute {
			stripped.Spec.Taints = append(stripped.Spec.Taints, taint)
		}
	}
	if len(stripped.Spec.Taints) == 0 {
		return stripped
	}
	stripped.ManagedFields = eviction.TaintManagers(node.ManagedFields)
	for _, label := range []string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion, corev1.LabelFailureDomainBetaZone} {
		if value, has := node.Labels[label]; has {
			metav1.SetMetaDataLabel(&stripped.ObjectMeta, label, value)
		}
	}
	return stripped
}

// tenant is what is kept of a pod: a third of what the same would take as a Pod, of which there are many.
type tenant struct {
	metav1.ObjectMeta
	node        string
	phase       corev1.PodPhase
	tolerations []corev1.Toleration
	// scheduled is when the pod came to its node as it says itself, or zero.
	scheduled time.Time
	disrupted bool
}

func tenantOf(pod *corev1.Pod) *tenant {
	t := &tenant{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Generation: pod.Generation, DeletionTimestamp: pod.DeletionTimestamp,
		},
		node: pod.Spec.NodeName, phase: pod.Status.Phase, tolerations: slices.Clone(pod.Spec.Tolerations), disrupted: disrupted(pod),
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			t.scheduled = c.LastTransitionTime.Time
		}
	}
	return t
}

// pod is the Pod of a tenant, with what eviction needs of it.
func (t *tenant) pod() *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: t.ObjectMeta,
		Spec:       corev1.PodSpec{NodeName: t.node, Tolerations: t.tolerations},
		Status:     corev1.PodStatus{Phase: t.phase},
	}
	if !t.scheduled.IsZero() {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(t.scheduled),
		})
	}
	if t.disrupted {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: disruptionReason,
		})
	}
	return pod
}
