package leaseobject

import (
	"context"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Delete removes the Lease of a holder if it is Own. Any other is left, and that is no error; nor is it that there is none.
func (w *LeaseWriter) Delete(ctx context.Context, namespace, name string) error {
	var err error
	for range attempts {
		lease, failed := w.Own(ctx, namespace, name)
		if failed != nil || lease == nil {
			return failed
		}
		if err = w.DeleteUnchanged(ctx, lease); !apierrors.IsConflict(err) {
			return err
		}
	}
	return fmt.Errorf("gave up after %d tries: %w", attempts, err)
}

// Own returns the Lease if it names the holder and this service was the last to renew it; nil if not, or if there is none.
// One that a kubelet renews for itself is the kubelet's, whoever else speaks for its Node.
func (w *LeaseWriter) Own(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	lease, err := w.get(ctx, namespace, name)
	if err != nil || lease == nil || !HeldBy(lease, name) || !RenewedByUs(lease) {
		return nil, err
	}
	return lease, nil
}

// DeleteSeen deletes a Lease if it is still as it was seen. One that is gone is no error; one that has changed is a conflict.
func (w *LeaseWriter) DeleteUnchanged(ctx context.Context, seen *coordinationv1.Lease) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion}}
	err := w.leases.Leases(seen.Namespace).Delete(ctx, seen.Name, options)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("delete lease %s/%s: %w", seen.Namespace, seen.Name, err)
}

// RenewedByUs tells whether the kube-apiserver recorded this service, and nobody beside it, as the last that changed the
// renewTime.
func RenewedByUs(lease *coordinationv1.Lease) bool {
	ours := false
	for _, entry := range lease.ManagedFields {
		if entry.FieldsV1 == nil || !strings.Contains(entry.FieldsV1.GetRawString(), `"f:renewTime"`) {
			continue
		}
		if entry.Manager != FieldManager {
			return false
		}
		ours = true
	}
	return ours
}
