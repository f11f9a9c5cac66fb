package nodelease_test

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/agent/nodelease"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestRenew_CreatesAndRenewsTheLeaseOfANode(t *testing.T) {
	kube, ctx := testkit.Kube(t), t.Context()
	const name = "node-of-nodelease"
	leases := kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	w, holder := nodelease.NewWriter(kube), agent.Holder{Class: "node", Name: name, BootID: "1"}
	if err := w.Renew(ctx, holder); !apierrors.IsNotFound(err) {
		t.Errorf("without a Node: %v", err)
	}
	node, err := kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kube.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	read := func() *coordinationv1.Lease {
		t.Helper()
		if err := w.Renew(ctx, holder); err != nil {
			t.Fatal(err)
		}
		lease, err := leases.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	created := read()
	if of := created.OwnerReferences; len(of) != 1 || of[0].UID != node.UID || *created.Spec.HolderIdentity != name || *created.Spec.LeaseDurationSeconds != 40 {
		t.Errorf("created %+v", created)
	}
	ahead := metav1.MicroTime{Time: time.Now().Add(time.Hour)}
	created.Spec.RenewTime, created.Spec.LeaseDurationSeconds = &ahead, new(int32(60))
	created.Labels = map[string]string{"a": "b"}
	if _, err := leases.Update(ctx, created, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	renewed := read()
	if !renewed.Spec.RenewTime.After(created.Spec.RenewTime.Time) || *renewed.Spec.LeaseDurationSeconds != 60 || renewed.Labels["a"] != "b" {
		t.Errorf("renewed %+v after %+v", renewed, created)
	}
	if err := w.Renew(ctx, agent.Holder{Class: "sidecar", Name: name, BootID: "1"}); err != nil {
		t.Errorf("a holder of another class: %v", err)
	}
	if again, err := leases.Get(ctx, name, metav1.GetOptions{}); err != nil || again.ResourceVersion != renewed.ResourceVersion {
		t.Errorf("a holder of another class wrote the Lease: %v, %v", again, err)
	}
}
