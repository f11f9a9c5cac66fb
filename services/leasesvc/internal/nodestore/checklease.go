package nodestore

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// CheckLeaseLabel marks the Leases of write checks. They belong to no Node.
	CheckLeaseLabel = "trivet.dev/write-check"
	// checkLeaseTries is how often a renewal is tried that meets another version of its Lease.
	checkLeaseTries = 5
	// checkLeaseSeconds is the duration of its Lease, that of a kubelet by default.
	checkLeaseSeconds = 40
)

// CheckLeaseName returns the name of the Lease that the leader of a shard writes.
func CheckLeaseName(shard int) string { return fmt.Sprintf("trivet-leasesvc-%d", shard) }

// RenewCheckLease writes a Lease with the verb that kubelets use, and creates it if there is none:
// if it fails, kubelets may be unable to renew theirs. It is in the namespace of the Leases of
// Nodes, and one for each shard at most. A Lease of this name without CheckLeaseLabel is not
// written. It must not be called concurrently.
func (w *Writer) RenewCheckLease(ctx context.Context, shard int) error {
	var err error
	for range checkLeaseTries {
		if w.checkLease, err = w.renewCheckLease(ctx, CheckLeaseName(shard), w.checkLease); err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return fmt.Errorf("renew lease %s/%s: %w", w.namespace, CheckLeaseName(shard), err)
}

// renewCheckLease renews the Lease once. known may be outdated, or another Lease; without it, the
// Lease is read first.
func (w *Writer) renewCheckLease(ctx context.Context, name string, known *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leases := w.kube.CoordinationV1().Leases(w.namespace)
	if known == nil || known.Name != name {
		read, err := leases.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return orNil(leases.Create(ctx, w.newCheckLease(name), metav1.CreateOptions{}))
		case err != nil:
			return nil, err
		}
		known = read
	}
	if _, ours := known.Labels[CheckLeaseLabel]; !ours {
		return nil, fmt.Errorf("it exists without the label %s, so something else owns it", CheckLeaseLabel)
	}
	next := known.DeepCopy()
	next.Spec.RenewTime = new(metav1.NowMicro())
	return orNil(leases.Update(ctx, next, metav1.UpdateOptions{}))
}

// orNil drops the empty object that client-go returns beside an error.
func orNil(lease *coordinationv1.Lease, err error) (*coordinationv1.Lease, error) {
	if err != nil {
		return nil, err
	}
	return lease, nil
}

func (w *Writer) newCheckLease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: map[string]string{CheckLeaseLabel: "leasesvc"}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("leasesvc"), LeaseDurationSeconds: new(int32(checkLeaseSeconds)), RenewTime: new(metav1.NowMicro()),
		},
	}
}
