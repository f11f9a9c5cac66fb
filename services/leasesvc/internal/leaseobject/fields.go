package leaseobject

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fresh is the Lease of a holder that has none.
func NewLease(r LeaseUpdate, node types.UID) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name, Namespace: r.Namespace},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       new(r.Name),
			LeaseDurationSeconds: new(seconds(r.Duration)),
			RenewTime:            &metav1.MicroTime{Time: later(nil, r.RenewTime)},
		},
	}
	if r.Class != "" {
		lease.Labels = map[string]string{ClassLabel: r.Class}
	} else {
		lease.OwnerReferences = []metav1.OwnerReference{ownedBy(r.Name, node)}
	}
	return lease
}

// renewed is last with the renewal in it; last stays as it is.
func UpdatedLease(last *coordinationv1.Lease, r LeaseUpdate, node types.UID) (*coordinationv1.Lease, error) {
	if last.DeletionTimestamp != nil {
		return nil, ErrTerminating
	}
	next := last.DeepCopy()
	if holder := next.Spec.HolderIdentity; holder == nil || *holder == "" {
		next.Spec.HolderIdentity = new(r.Name)
	}
	if !HeldBy(next, r.Name) {
		return nil, ErrForeignHolder
	}
	if r.Class == "" {
		next.OwnerReferences = owned(next.OwnerReferences, r.Name, node)
	}
	if r.ExpireTime.IsZero() {
		next.Spec.LeaseDurationSeconds = new(seconds(r.Duration))
		next.Spec.RenewTime = &metav1.MicroTime{Time: later(last.Spec.RenewTime, r.RenewTime)}
		return next, nil
	}
	lapse(next, r)
	return next, nil
}

// lapse makes the Lease say when its holder was last heard, and for so short a time that it has lapsed. A holder that was not
// heard since is given no later renewTime, which readers would take for a sign of life.
func lapse(lease *coordinationv1.Lease, r LeaseUpdate) {
	heard := r.RenewTime.Truncate(time.Microsecond)
	if before := lease.Spec.RenewTime; before != nil && before.After(heard) {
		heard = before.Time
	}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: heard}
	if d := lease.Spec.LeaseDurationSeconds; d != nil && !heard.Add(time.Duration(*d)*time.Second).After(r.ExpireTime) {
		return
	}
	lease.Spec.LeaseDurationSeconds = new(min(wholeSeconds(r.ExpireTime.Sub(heard)), seconds(r.Duration)))
}

// unchanged tells whether a write of next over last would say nothing new.
func EqualLeases(last, next *coordinationv1.Lease) bool {
	return equality.Semantic.DeepEqual(last, next)
}

// owned returns refs with the Node among them and no other Node; it may change refs.
func owned(refs []metav1.OwnerReference, node string, uid types.UID) []metav1.OwnerReference {
	refs = slices.DeleteFunc(refs, func(ref metav1.OwnerReference) bool { return ownsAsNode(ref) && ref.UID != uid })
	if slices.ContainsFunc(refs, ownsAsNode) {
		return refs
	}
	return append(refs, ownedBy(node, uid))
}

// later returns t, or what comes right after before when t does not: readers compare renewTimes at the resolution of the
// wire, which is a microsecond.
func later(before *metav1.MicroTime, t time.Time) time.Time {
	t = t.Truncate(time.Microsecond)
	if before == nil || t.After(before.Time) {
		return t
	}
	return before.Add(time.Microsecond)
}

func HeldBy(lease *coordinationv1.Lease, name string) bool {
	return lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == name
}

func ownedBy(node string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}
}

func ownsAsNode(ref metav1.OwnerReference) bool { return ref.APIVersion == "v1" && ref.Kind == "Node" }

// misowned tells whether the Lease belongs to another Node than the one with this UID. One without any Node is not misowned:
// nobody contradicts the cache.
func OwnedByOtherNode(lease *coordinationv1.Lease, uid types.UID) bool {
	return slices.ContainsFunc(lease.OwnerReferences, func(ref metav1.OwnerReference) bool {
		return ownsAsNode(ref) && ref.UID != uid
	})
}

func seconds(d time.Duration) int32 {
	return int32(max((d+time.Second-1)/time.Second, 1))
}

// slim drops what is half of a Lease's size and is not needed to write it again: the kube-apiserver keeps the managed fields
// of an object whose update names none.
func withoutManagedFields(lease *coordinationv1.Lease) *coordinationv1.Lease {
	lease.ManagedFields = nil
	return lease
}
