package evictioncontroller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
)

// disruptionReason is upstream's: failure policies of Jobs are written against the condition, people read the reason.
const disruptionReason = "DeletionByTaintManager"

// Client is a Writer on a fenced client. It is safe for concurrent use.
type PodWriter struct{ kube kubernetes.Interface }

// NewClient returns a Client; kube is a fenced one.
func NewPodWriter(kube kubernetes.Interface) *PodWriter { return &PodWriter{kube: kube} }

// Node returns a Node as it is now, stripped, or nil.
func (c *PodWriter) Node(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get node %q: %w", name, err)
	}
	return stripNode(node), nil
}

// Evict says in the pod's status that it is disrupted and deletes it, if it is still as it was. A pod that has finished was not
// disrupted: a Job must not take its failure for one.
func (c *PodWriter) Evict(ctx context.Context, e *eviction.Eviction) error {
	pod := e.Pod
	version := pod.ResourceVersion
	if !finished(pod) && !disrupted(pod) {
		marked, err := c.mark(ctx, e)
		if err != nil {
			return fmt.Errorf("mark pod %s/%s as disrupted: %w", pod.Namespace, pod.Name, err)
		}
		version = marked.ResourceVersion
	}
	err := c.kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &version},
	})
	if err != nil {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// mark sets the condition in a patch that names nothing else and is guarded by the pod's UID and version.
func (c *PodWriter) mark(ctx context.Context, e *eviction.Eviction) (*corev1.Pod, error) {
	patch := struct {
		Metadata struct {
			UID             types.UID `json:"uid"`
			ResourceVersion string    `json:"resourceVersion"`
		} `json:"metadata"`
		Status struct {
			Conditions []corev1.PodCondition `json:"conditions"`
		} `json:"status"`
	}{}
	patch.Metadata.UID, patch.Metadata.ResourceVersion = e.Pod.UID, e.Pod.ResourceVersion
	patch.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: e.Pod.Generation,
		LastTransitionTime: metav1.Now(), Reason: disruptionReason,
		Message: fmt.Sprintf("the node has the taint %s, which is not tolerated any longer", e.Taint.ToString()),
	}}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return c.kube.CoreV1().Pods(e.Pod.Namespace).Patch(ctx, e.Pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func disrupted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == disruptionReason
	})
}
