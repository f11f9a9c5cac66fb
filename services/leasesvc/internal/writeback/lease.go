package writeback

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// ClassLabel is the label of a Lease that no Node owns. Its value is the class of the holder.
	ClassLabel = "trivet.dev/holder-class"
	// FieldManager is the manager of this service's writes in the managed fields of a Lease.
	FieldManager = "trivet-leasesvc"
)

var (
	// ErrForeignHolder reports a Lease that names another holder. It is not written.
	ErrForeignHolder = errors.New("the Lease names another holder")
	// ErrTerminating reports a Lease that is being deleted. It is not written.
	ErrTerminating = errors.New("the Lease is being deleted")
)

// LeaseUpdate is the content that a Lease must show.
type LeaseUpdate struct {
	Namespace string
	// Name is the name of the Lease, of its holder and, if Class is empty, of its Node.
	Name string
	// Class is empty if the Node of the same name owns the Lease. Otherwise the Lease has no owner
	// and carries ClassLabel with this value.
	Class string
	// Duration is rounded up to whole seconds; the object holds at least one second.
	Duration time.Duration
	// RenewTime is the time of the holder's last beat.
	RenewTime time.Time
	// ExpireTime is set if the holder has expired. The Lease is then written so that it lapses at
	// this time. Duration is the longest duration that it may get.
	ExpireTime time.Time
	// Last is the record of the last write or read, or the zero LeaseRecord.
	Last LeaseRecord
}

// owner identifies the owner of the Lease for LeaseRecord: the class or the UID of the Node.
func (u *LeaseUpdate) owner(node types.UID) string {
	if u.Class != "" {
		return u.Class
	}
	return string(node)
}

// NewLease returns the Lease to create. node is the UID of the owner; it is not used if the update
// has a class.
func NewLease(u LeaseUpdate, node types.UID) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: u.Name, Namespace: u.Namespace},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       new(u.Name),
			LeaseDurationSeconds: new(ceilSeconds(u.Duration)),
			RenewTime:            &metav1.MicroTime{Time: laterThan(nil, u.RenewTime)},
		},
	}
	if u.Class != "" {
		lease.Labels = map[string]string{ClassLabel: u.Class}
	} else {
		lease.OwnerReferences = []metav1.OwnerReference{nodeReference(u.Name, node)}
	}
	return lease
}

// UpdatedLease returns a copy of last with the update applied. It fails with ErrTerminating or
// ErrForeignHolder.
func UpdatedLease(last *coordinationv1.Lease, u LeaseUpdate, node types.UID) (*coordinationv1.Lease, error) {
	if last.DeletionTimestamp != nil {
		return nil, ErrTerminating
	}
	next := last.DeepCopy()
	if holder := next.Spec.HolderIdentity; holder == nil || *holder == "" {
		next.Spec.HolderIdentity = new(u.Name)
	}
	if !HeldBy(next, u.Name) {
		return nil, ErrForeignHolder
	}
	if u.Class == "" {
		next.OwnerReferences = withOwner(next.OwnerReferences, u.Name, node)
	}
	if u.ExpireTime.IsZero() {
		next.Spec.LeaseDurationSeconds = new(ceilSeconds(u.Duration))
		next.Spec.RenewTime = &metav1.MicroTime{Time: laterThan(last.Spec.RenewTime, u.RenewTime)}
		return next, nil
	}
	expire(next, u)
	return next, nil
}

// expire shortens the Lease so that it has lapsed at u.ExpireTime. The renewTime does not pass the
// last beat, because readers take any later renewTime for a beat.
func expire(lease *coordinationv1.Lease, u LeaseUpdate) {
	lastBeat := u.RenewTime.Truncate(time.Microsecond)
	if before := lease.Spec.RenewTime; before != nil && before.After(lastBeat) {
		lastBeat = before.Time
	}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: lastBeat}
	if d := lease.Spec.LeaseDurationSeconds; d != nil && !lastBeat.Add(time.Duration(*d)*time.Second).After(u.ExpireTime) {
		return
	}
	lease.Spec.LeaseDurationSeconds = new(min(floorSeconds(u.ExpireTime.Sub(lastBeat)), ceilSeconds(u.Duration)))
}

// EqualLeases reports whether writing next over last would change nothing.
func EqualLeases(last, next *coordinationv1.Lease) bool {
	return equality.Semantic.DeepEqual(last, next)
}

// HeldBy reports whether the Lease names the holder.
func HeldBy(lease *coordinationv1.Lease, holder string) bool {
	return lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == holder
}

// OwnedByOtherNode reports whether a Node with another UID owns the Lease. It is false if no Node
// owns it.
func OwnedByOtherNode(lease *coordinationv1.Lease, uid types.UID) bool {
	return slices.ContainsFunc(lease.OwnerReferences, func(ref metav1.OwnerReference) bool {
		return refersToNode(ref) && ref.UID != uid
	})
}

// RenewedByOther reports whether another manager than this service set the current renewTime. It is
// false for a Lease that was read without managed fields.
func RenewedByOther(lease *coordinationv1.Lease) bool {
	return slices.ContainsFunc(lease.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager != FieldManager && setsRenewTime(entry)
	})
}

func setsRenewTime(entry metav1.ManagedFieldsEntry) bool {
	return entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:renewTime"`)
}

// RenewedByUs reports whether this service was the only manager that set the current renewTime.
func RenewedByUs(lease *coordinationv1.Lease) bool {
	return slices.ContainsFunc(lease.ManagedFields, setsRenewTime) && !RenewedByOther(lease)
}

// Orphaned reports whether this service created and last renewed the Lease for a holder of the
// class, the Lease has no owner, and it lapsed more than retention before now.
func Orphaned(lease *coordinationv1.Lease, class string, now time.Time, retention time.Duration) bool {
	spec := &lease.Spec
	switch {
	case lease.Labels[ClassLabel] != class, len(lease.OwnerReferences) > 0, len(lease.Finalizers) > 0, lease.DeletionTimestamp != nil:
		return false
	case !HeldBy(lease, lease.Name), !RenewedByUs(lease):
		return false
	case spec.RenewTime == nil, spec.LeaseDurationSeconds == nil:
		return false
	}
	lapsed := spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second)
	return now.Sub(lapsed) > retention
}

// withOwner returns refs with the given Node as the only Node. It may change refs.
func withOwner(refs []metav1.OwnerReference, node string, uid types.UID) []metav1.OwnerReference {
	refs = slices.DeleteFunc(refs, func(ref metav1.OwnerReference) bool { return refersToNode(ref) && ref.UID != uid })
	if slices.ContainsFunc(refs, refersToNode) {
		return refs
	}
	return append(refs, nodeReference(node, uid))
}

func nodeReference(node string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}
}

func refersToNode(ref metav1.OwnerReference) bool {
	return ref.APIVersion == "v1" && ref.Kind == "Node"
}

// laterThan returns t, or the microsecond after before if t is not later. Readers compare
// renewTimes in microseconds.
func laterThan(before *metav1.MicroTime, t time.Time) time.Time {
	t = t.Truncate(time.Microsecond)
	if before == nil || t.After(before.Time) {
		return t
	}
	return before.Add(time.Microsecond)
}

// ceilSeconds rounds up to leaseDurationSeconds, at least 1.
func ceilSeconds(d time.Duration) int32 {
	return int32(max((d+time.Second-1)/time.Second, 1))
}

// floorSeconds rounds down to leaseDurationSeconds, at least 1.
func floorSeconds(d time.Duration) int32 {
	return int32(min(max(d/time.Second, 1), math.MaxInt32))
}
