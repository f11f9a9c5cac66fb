package nodestore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// disruptionReason is the reason that the taint-eviction controller of Kubernetes writes.
const disruptionReason = "DeletionByTaintManager"

// Writer writes to Nodes and Pods, and reads past the cache. Its methods block until kube-apiserver
// answers or ctx ends. Except RenewCheckLease it is safe for concurrent use.
type Writer struct {
	kube      kubernetes.Interface
	namespace string
	slimmer   *slimmer
	// checkLease is the Lease of RenewCheckLease as it was last written or read; nil if that is not
	// known.
	checkLease *coordinationv1.Lease
}

// Writer returns a Writer with the client of the Store.
func (s *Store) Writer() *Writer {
	return &Writer{kube: s.kube, namespace: s.cfg.Namespace, slimmer: s.slimmer}
}

// Write applies a step and returns the Node after it, as the Store would cache it.
func (w *Writer) Write(ctx context.Context, step nodehealth.Step) (*corev1.Node, error) {
	if step.Conditions != nil {
		patch := statusPatch[corev1.NodeCondition]{Metadata: guardOf(step.Node)}
		patch.Status.Conditions = step.Conditions
		// kube-apiserver merges conditions by type.
		return w.patchNode(ctx, step.Node.Name, types.StrategicMergePatchType, patch, "status")
	}
	patch := nodePatch{Metadata: guardOf(step.Node)}
	patch.Metadata.Labels = step.Labels
	if step.Taints != nil {
		patch.Spec = &nodeSpec{Taints: *step.Taints}
	}
	return w.patchNode(ctx, step.Node.Name, types.MergePatchType, patch)
}

func (w *Writer) patchNode(ctx context.Context, name string, kind types.PatchType, patch any, subresources ...string) (*corev1.Node, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("node %q: %w", name, err)
	}
	node, err := w.kube.CoreV1().Nodes().Patch(ctx, name, kind, body, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return nil, fmt.Errorf("patch node %q: %w", name, err)
	}
	return w.slimmer.node(node), nil
}

// MarkPodNotReady sets the Ready condition of a Pod to False. A Pod that does not exist is no
// error.
func (w *Writer) MarkPodNotReady(ctx context.Context, pod *corev1.Pod, at metav1.Time) error {
	_, err := w.patchPod(ctx, pod, nodehealth.NotReadyCondition(pod, at))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// Evict sets the condition DisruptionTarget of a Pod and deletes it. A finished Pod gets no
// condition, because a Job would take its failure for a disruption. A Pod that does not exist is an
// error.
func (w *Writer) Evict(ctx context.Context, e *eviction.Eviction) error {
	pod := e.Pod
	version := pod.ResourceVersion
	if !finished(pod) && !disrupted(pod) {
		marked, err := w.patchPod(ctx, pod, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: pod.Generation,
			LastTransitionTime: metav1.Now(), Reason: disruptionReason,
			Message: fmt.Sprintf("the node has the taint %s, which is not tolerated any longer", e.Taint.ToString()),
		})
		if err != nil {
			return fmt.Errorf("mark pod %s/%s as disrupted: %w", pod.Namespace, pod.Name, err)
		}
		version = marked.ResourceVersion
	}
	err := w.kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &version},
	})
	if err != nil {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func disrupted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == disruptionReason
	})
}

func (w *Writer) patchPod(ctx context.Context, pod *corev1.Pod, condition corev1.PodCondition) (*corev1.Pod, error) {
	patch := statusPatch[corev1.PodCondition]{Metadata: guardOf(pod)}
	patch.Status.Conditions = []corev1.PodCondition{condition}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return w.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
}

// LiveNode reads a Node past the cache, as the Store would cache it. It returns nil if the Node
// does not exist.
func (w *Writer) LiveNode(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := w.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get node %q: %w", name, err)
	}
	return w.slimmer.node(node), nil
}

// LivePod reads a Pod past the cache. It returns nil if the Pod does not exist, or if another one
// of its name has replaced it. It lists, which the role for the cache allows already.
func (w *Writer) LivePod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	named := fields.OneTermEqualSelector(metav1.ObjectNameField, pod.Name)
	list, err := w.kube.CoreV1().Pods(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: named.String()})
	if err != nil {
		return nil, fmt.Errorf("list pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	for i := range list.Items {
		if live := &list.Items[i]; live.UID == pod.UID {
			return live, nil
		}
	}
	return nil, nil
}

// NewerLeases reads Leases past the cache, all at the same time, and returns those that were
// renewed after their samples, as the Store would cache them. One answer is enough: a read that
// takes much longer than the first one is given up. It returns an error if no read was answered.
// Without samples it lists one Lease.
func (w *Writer) NewerLeases(ctx context.Context, samples []nodehealth.Sample) ([]nodehealth.LiveLease, error) {
	if len(samples) == 0 {
		_, err := w.kube.CoordinationV1().Leases(w.namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan leaseAnswer, len(samples)) // has a place for each read
	begin := time.Now()
	for _, sample := range samples {
		go func() { answers <- w.newerLease(ctx, sample) }()
	}
	var (
		newer   []nodehealth.LiveLease
		failed  error
		patient <-chan time.Time // nil before the first answer
	)
	for range samples {
		select {
		case <-patient:
			return newer, nil
		case answer := <-answers:
			switch {
			case answer.err != nil:
				failed = cmp.Or(failed, answer.err)
				continue
			case answer.newer:
				newer = append(newer, answer.live)
			}
			if patient == nil {
				timer := time.NewTimer(max(remainingReads, time.Since(begin)))
				defer timer.Stop()
				patient = timer.C
			}
		}
	}
	if patient == nil {
		return nil, failed
	}
	return newer, nil
}

// remainingReads is how long NewerLeases waits at least for further reads after the first answer.
const remainingReads = time.Second

// leaseAnswer is the result of one read.
type leaseAnswer struct {
	live  nodehealth.LiveLease
	newer bool
	err   error
}

func (w *Writer) newerLease(ctx context.Context, sample nodehealth.Sample) leaseAnswer {
	lease, err := w.kube.CoordinationV1().Leases(w.namespace).Get(ctx, sample.Node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return leaseAnswer{}
	case err != nil:
		return leaseAnswer{err: fmt.Errorf("get lease %s/%s: %w", w.namespace, sample.Node, err)}
	}
	live := nodehealth.LiveLease{Node: sample.Node, Lease: w.slimmer.liveLease(lease)}
	return leaseAnswer{live: live, newer: live.Lease.Renews(sample)}
}

// The patches have only what changes, and its guard.
type (
	guard struct {
		UID             types.UID         `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels,omitempty"`
	}
	statusPatch[Condition any] struct {
		Metadata guard `json:"metadata"`
		Status   struct {
			Conditions []Condition `json:"conditions"`
		} `json:"status"`
	}
	nodePatch struct {
		Metadata guard     `json:"metadata"`
		Spec     *nodeSpec `json:"spec,omitempty"`
	}
	nodeSpec struct {
		Taints []corev1.Taint `json:"taints"`
	}
)

func guardOf(object metav1.Object) guard {
	return guard{UID: object.GetUID(), ResourceVersion: object.GetResourceVersion()}
}
