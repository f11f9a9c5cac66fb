// Package nodelease renews the Lease of a Node in kube-node-lease, as its kubelet would. It is for
// programs that beat in place of kubelets, while leasesvc does not acknowledge their beats.
//
// A kubelet that writes its Lease itself must not have a second writer.
package nodelease

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/trivet-dev/trivet/agent"
)

const (
	class = "node"
	// durationSeconds is that of a kubelet by default.
	durationSeconds = 40
)

// Writer renews Leases. It is safe for concurrent use.
type Writer struct{ client kubernetes.Interface }

// NewWriter returns a Writer. The client needs the rights get, create and update of leases in
// kube-node-lease, and get of nodes; a kubelet has them for its own Node. A renewal is two
// requests, so a client for many Nodes needs more than the 5 requests per second that client-go
// allows by default.
func NewWriter(client kubernetes.Interface) *Writer { return &Writer{client: client} }

// Renew renews the Lease of a holder of the class "node", and creates it for a Node that has none;
// it ignores holders of other classes. It is an agent.Config.Unacknowledged. It fails if there is
// no Node to create it for, if the Lease has another holder than the Node, and if the Lease, or the
// Node to create it for, is being deleted. renewTime never falls, because readers take an earlier
// one for silence.
func (w *Writer) Renew(ctx context.Context, h agent.Holder) error {
	if h.Class != class {
		return nil
	}
	err := retry.OnError(retry.DefaultRetry, isChanged, func() error { return w.renew(ctx, h.Name) })
	if err != nil {
		return fmt.Errorf("renew Lease %s/%s: %w", corev1.NamespaceNodeLease, h.Name, err)
	}
	return nil
}

// isChanged reports whether another writer, such as leasesvc, was first.
func isChanged(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

func (w *Writer) renew(ctx context.Context, node string) error {
	leases := w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return w.create(ctx, node)
	}
	if err != nil {
		return err
	}
	switch holder := lease.Spec.HolderIdentity; {
	case lease.DeletionTimestamp != nil:
		return errors.New("it is being deleted")
	case holder != nil && *holder != node:
		return fmt.Errorf("its holder is %q, not the Node", *holder)
	}
	now := metav1.NowMicro()
	if before := lease.Spec.RenewTime; before != nil && !now.After(before.Time) {
		now = metav1.MicroTime{Time: before.Add(time.Microsecond)}
	}
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = &node, &now
	if lease.Spec.LeaseDurationSeconds == nil {
		lease.Spec.LeaseDurationSeconds = new(int32(durationSeconds))
	}
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

// create creates the Lease, owned by the Node so that it goes with it.
func (w *Writer) create(ctx context.Context, name string) error {
	node, err := w.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if node.DeletionTimestamp != nil {
		return errors.New("its Node is being deleted")
	}
	_, err = w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: new(int32(durationSeconds)), RenewTime: new(metav1.NowMicro())},
	}, metav1.CreateOptions{})
	return err
}
