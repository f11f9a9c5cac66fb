package leaseobject

import (
	"context"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Delete removes the Lease if it is the holder's: last as the last Write returned it, or, with the zero Known, whichever
// Lease names the holder. One that is gone, or that became somebody else's, is no error.
func (w *Writer) Delete(ctx context.Context, namespace, name string, last Known) error {
	if last.Exists() && last.whole == nil {
		err := w.remove(ctx, namespace, name, guard{uid: last.UID(), version: last.ResourceVersion()})
		if !apierrors.IsConflict(err) {
			return err
		}
	}
	return w.deleteIf(ctx, namespace, name, func(lease *coordinationv1.Lease) bool { return heldBy(lease, name) })
}

// DeleteOwn removes the Lease of a holder whose session is not known if it names the holder and this service was the last to
// renew it. Any other is left, and that is no error.
func (w *Writer) DeleteOwn(ctx context.Context, namespace, name string) error {
	return w.deleteIf(ctx, namespace, name, func(lease *coordinationv1.Lease) bool {
		return heldBy(lease, name) && RenewedByUs(lease)
	})
}

// deleteIf deletes what it has read and found to be the right Lease, and nothing that came after.
func (w *Writer) deleteIf(ctx context.Context, namespace, name string, right func(*coordinationv1.Lease) bool) error {
	var err error
	for range attempts {
		lease, failed := w.get(ctx, namespace, name)
		if failed != nil || lease == nil || !right(lease) {
			return failed
		}
		if err = w.remove(ctx, namespace, name, guard{uid: lease.UID, version: lease.ResourceVersion}); !apierrors.IsConflict(err) {
			return err
		}
	}
	return fmt.Errorf("gave up after %d tries: %w", attempts, err)
}

// guard names one state of one object.
type guard struct {
	uid     types.UID
	version string
}

// remove deletes that state of the Lease; that there is none any more is no error.
func (w *Writer) remove(ctx context.Context, namespace, name string, g guard) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &g.uid, ResourceVersion: &g.version}}
	err := w.leases.Leases(namespace).Delete(ctx, name, options)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("delete lease %s/%s: %w", namespace, name, err)
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
