package leaseobject

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// Orphaned tells whether a Lease is one that this service made for a holder of the class, belongs to nobody who could take it
// along, and has lapsed for longer than patience.
func Orphaned(lease *coordinationv1.Lease, class string, now time.Time, patience time.Duration) bool {
	spec := &lease.Spec
	switch {
	case lease.Labels[ClassLabel] != class, len(lease.OwnerReferences) > 0, len(lease.Finalizers) > 0, lease.DeletionTimestamp != nil:
		return false
	case !HeldBy(lease, lease.Name), !RenewedByUs(lease):
		return false
	case spec.RenewTime == nil, spec.LeaseDurationSeconds == nil:
		return false
	}
	lapses := spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second)
	return now.Sub(lapses) > patience
}
