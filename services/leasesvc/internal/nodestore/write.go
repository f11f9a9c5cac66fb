package nodestore

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// Writer patches Nodes and pods. It is safe for concurrent use.
type Writer struct {
	kube      kubernetes.Interface
	namespace string
	labels    []string
}

// NewWriter returns a Writer for the Leases in cfg's namespace; kube is a fenced client.
func NewWriter(kube kubernetes.Interface, cfg Config) *Writer {
	return &Writer{kube: kube, namespace: cfg.Namespace, labels: append(nodehealth.RequiredLabels(), cfg.Labels...)}
}

// The patches hold only what is to change, and what guards it.
type (
	guard struct {
		UID             types.UID         `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels,omitempty"`
	}
	nodeStatusPatch struct {
		Metadata guard `json:"metadata"`
		Status   struct {
			Conditions []corev1.NodeCondition `json:"conditions"`
		} `json:"status"`
	}
	nodePatch struct {
		Metadata guard     `json:"metadata"`
		Spec     *nodeSpec `json:"spec,omitempty"`
	}
	nodeSpec struct {
		Taints []corev1.Taint `json:"taints"`
	}
	podStatusPatch struct {
		Metadata guard `json:"metadata"`
		Status   struct {
			Conditions []corev1.PodCondition `json:"conditions"`
		} `json:"status"`
	}
)

func guarded(object metav1.Object) guard {
	return guard{UID: object.GetUID(), ResourceVersion: object.GetResourceVersion()}
}

// Write carries out a step and returns the Node as it is then, stripped.
func (w *Writer) Write(ctx context.Context, step nodehealth.Step) (*corev1.Node, error) {
	if step.Conditions != nil {
		return w.setConditions(ctx, step)
	}
	patch := nodePatch{Metadata: guarded(step.Node)}
	patch.Metadata.Labels = step.Labels
	if step.Taints != nil {
		patch.Spec = &nodeSpec{Taints: *step.Taints}
	}
	return w.patch(ctx, step.Node.Name, types.MergePatchType, patch)
}

// setConditions lets the kube-apiserver merge the conditions by their types.
func (w *Writer) setConditions(ctx context.Context, step nodehealth.Step) (*corev1.Node, error) {
	patch := nodeStatusPatch{Metadata: guarded(step.Node)}
	patch.Status.Conditions = step.Conditions
	return w.patch(ctx, step.Node.Name, types.StrategicMergePatchType, patch, "status")
}

func (w *Writer) patch(ctx context.Context, name string, kind types.PatchType, patch any, subresources ...string) (*corev1.Node, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("node %q: %w", name, err)
	}
	node, err := w.kube.CoreV1().Nodes().Patch(ctx, name, kind, body, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return nil, fmt.Errorf("patch node %q: %w", name, err)
	}
	return stripNode(node, w.labels), nil
}

// MarkUnready says in a pod that it is not ready. A pod that is gone is no error.
func (w *Writer) MarkPodNotReady(ctx context.Context, pod *corev1.Pod, at metav1.Time) error {
	patch := podStatusPatch{Metadata: guarded(pod)}
	patch.Status.Conditions = []corev1.PodCondition{nodehealth.NotReadyCondition(pod, at)}
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	_, err = w.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// Compare reads Leases past the cache and returns those that are newer than the samples say. Without samples it asks only
// whether there is an answer.
func (w *Writer) NewerLeases(ctx context.Context, samples []nodehealth.Sample) ([]nodehealth.Sample, error) {
	if len(samples) == 0 {
		_, err := w.kube.CoordinationV1().Leases(w.namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return nil, err
	}
	var newer []nodehealth.Sample
	for _, sample := range samples {
		lease, err := w.kube.CoordinationV1().Leases(w.namespace).Get(ctx, sample.Node, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("get lease %s/%s: %w", w.namespace, sample.Node, err)
		case nodehealth.Newer(lease.ResourceVersion, sample.LeaseVersion):
			newer = append(newer, nodehealth.Sample{Node: sample.Node, LeaseVersion: lease.ResourceVersion})
		}
	}
	return newer, nil
}
