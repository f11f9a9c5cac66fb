package simtest

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// LeaseNamespace is where the Leases of Nodes live.
const LeaseNamespace = corev1.NamespaceNodeLease

// cleanupTimeout bounds what is removed after a test.
const cleanupTimeout = 30 * time.Second

// CreateNode makes a Node that is ready, as its kubelet registers it. It goes with the test, and
// its Lease too.
func CreateNode(t *testing.T, kube kubernetes.Interface, name string) *corev1.Node {
	t.Helper()
	now := metav1.Now()
	node, err := kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		remove(t, kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
		remove(t, kube.CoordinationV1().Leases(LeaseNamespace).Delete(ctx, name, metav1.DeleteOptions{}))
	})
	return node
}

func remove(t *testing.T, err error) {
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}
