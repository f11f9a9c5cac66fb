package nodestore

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// stripping makes a TransformFunc of a function for one kind. What is not of the kind passes unchanged.
func stripping[T, U any](strip func(T) U) cache.TransformFunc {
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

// lease is what is kept of a Lease.
type lease struct {
	// ObjectMeta has no more than name and namespace, by which informers know an object.
	metav1.ObjectMeta
	said   nodehealth.Lease
	holder string
}

func stripLease(object *coordinationv1.Lease) *lease {
	stripped := &lease{
		ObjectMeta: metav1.ObjectMeta{Name: object.Name, Namespace: object.Namespace, ResourceVersion: object.ResourceVersion},
		said:       nodehealth.Lease{Version: object.ResourceVersion, RenewedByUs: writeback.RenewedByUs(object)},
	}
	if renewed := object.Spec.RenewTime; renewed != nil {
		stripped.said.RenewTime = renewed.Time
	}
	if seconds := object.Spec.LeaseDurationSeconds; seconds != nil {
		stripped.said.Duration = time.Duration(max(*seconds, 0)) * time.Second
	}
	if holder := object.Spec.HolderIdentity; holder != nil {
		stripped.holder = *holder
	}
	return stripped
}

// pod is what is kept of a Pod: there are millions, each of which would take more than a KiB as an object.
type pod struct {
	// ObjectMeta has no more than names and version.
	metav1.ObjectMeta
	node  string
	ready corev1.ConditionStatus // empty without a Ready condition
}

func stripPod(object *corev1.Pod) *pod {
	stripped := &pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: object.Name, Namespace: object.Namespace, UID: object.UID, ResourceVersion: object.ResourceVersion,
		},
		node: object.Spec.NodeName,
	}
	if ready := nodehealth.PodReadyCondition(object); ready != nil {
		stripped.ready = ready.Status
	}
	return stripped
}

// object is the Pod as far as it is known.
func (p *pod) object() *corev1.Pod {
	object := &corev1.Pod{ObjectMeta: p.ObjectMeta, Spec: corev1.PodSpec{NodeName: p.node}}
	if p.ready != "" {
		object.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: p.ready}}
	}
	return object
}
