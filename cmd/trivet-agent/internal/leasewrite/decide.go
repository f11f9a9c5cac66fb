package leasewrite

import (
	"errors"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const nodeLeaseNamespace = "kube-node-lease"

var errUnknown = errors.New("decode patch: the Lease is not known")

// Decode returns the Lease that a write asks for. known is the Lease that a patch applies to; a
// patch without it is an error.
func Decode(form Form, body []byte, known *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if form.Kind == Merge {
		if known == nil {
			return nil, errUnknown
		}
		return decodePatch(body, known)
	}
	write, err := DecodeLease(form.In, body)
	if err == nil && form.In == Protobuf {
		err = wholly(body, write)
	}
	return write, err
}

// Verdict is what a write is.
type Verdict int

const (
	// Unusual writes pass as they came.
	Unusual Verdict = iota
	// Change is a renewal that changes more than the time, so that kube-apiserver must have it.
	Change
	// Renewal changes nothing but the time.
	Renewal
)

// Judge says what a write of a node's Lease is. known is the Lease as kube-apiserver has it, and
// settled what the kubelet last wrote or read; each is nil if it is unknown. leasesvc writes the
// Lease as well, so a field counts as changed if it differs from settled, not from known.
func Judge(node string, write, known, settled *coordinationv1.Lease) Verdict {
	switch {
	case write.Name != node || write.Namespace != nodeLeaseNamespace:
		return Unusual
	case write.Spec.HolderIdentity == nil || *write.Spec.HolderIdentity != node:
		return Unusual
	case write.Spec.LeaseDurationSeconds == nil || *write.Spec.LeaseDurationSeconds <= 0 || write.Spec.RenewTime == nil:
		return Unusual
	case write.DeletionTimestamp != nil || known != nil && known.DeletionTimestamp != nil:
		return Unusual
	case known != nil && write.UID != "" && write.UID != known.UID:
		return Unusual // another object; kube-apiserver answers with a conflict
	case settled == nil:
		return Renewal
	case !equality.Semantic.DeepEqual(intent(write), intent(settled)):
		return Change
	}
	return Renewal
}

// intent is what a kubelet decides about its Lease, without time and version.
func intent(l *coordinationv1.Lease) coordinationv1.Lease {
	i := coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Labels: l.Labels, Annotations: l.Annotations, OwnerReferences: l.OwnerReferences, Finalizers: l.Finalizers,
		},
		Spec: l.Spec,
	}
	i.Spec.RenewTime = nil
	return i
}

// Answer returns the Lease that the kubelet gets for a renewal: known with the spec of the write.
// Its resourceVersion is one that kube-apiserver gave. If known is nil, the write is all that is
// known.
func Answer(write, known *coordinationv1.Lease) *coordinationv1.Lease {
	if known == nil {
		return write.DeepCopy()
	}
	answer := known.DeepCopy()
	answer.Spec = *write.Spec.DeepCopy()
	answer.ResourceVersion = newer(write.ResourceVersion, known.ResourceVersion)
	return answer
}

// newer returns the higher version; b if they cannot be compared.
func newer(a, b string) string {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	if errX == nil && errY == nil && x > y {
		return a
	}
	return b
}

// Rebase returns the write as it applies to known. What the kubelet changed since settled is from
// the write, the rest is from known. The resourceVersion is that of known, because leasesvc may
// have written since the kubelet read. renewTime never falls: readers take an earlier one for
// silence.
func Rebase(write, known, settled *coordinationv1.Lease) *coordinationv1.Lease {
	if known == nil {
		return write.DeepCopy()
	}
	if settled == nil {
		settled = known
	}
	rebased := known.DeepCopy()
	merge(&rebased.Labels, write.Labels, settled.Labels)
	merge(&rebased.Annotations, write.Annotations, settled.Annotations)
	merge(&rebased.OwnerReferences, write.OwnerReferences, settled.OwnerReferences)
	merge(&rebased.Finalizers, write.Finalizers, settled.Finalizers)
	merge(&rebased.Spec.AcquireTime, write.Spec.AcquireTime, settled.Spec.AcquireTime)
	merge(&rebased.Spec.LeaseTransitions, write.Spec.LeaseTransitions, settled.Spec.LeaseTransitions)
	merge(&rebased.Spec.Strategy, write.Spec.Strategy, settled.Spec.Strategy)
	merge(&rebased.Spec.PreferredHolder, write.Spec.PreferredHolder, settled.Spec.PreferredHolder)
	rebased.Spec.HolderIdentity = write.Spec.HolderIdentity
	rebased.Spec.LeaseDurationSeconds = write.Spec.LeaseDurationSeconds
	rebased.Spec.RenewTime = write.Spec.RenewTime
	if before := known.Spec.RenewTime; before != nil && !write.Spec.RenewTime.After(before.Time) {
		rebased.Spec.RenewTime = &metav1.MicroTime{Time: before.Add(time.Microsecond)}
	}
	return rebased
}

// merge sets a field of the current object if the write changed it since settled.
func merge[T any](field *T, write, settled T) {
	if !equality.Semantic.DeepEqual(write, settled) {
		*field = write
	}
}

// DueAfter returns the age at which the renewal of a Lease is overdue: three quarters of its
// duration. leasesvc renews before, and readers wait for the whole duration.
func DueAfter(l *coordinationv1.Lease) time.Duration {
	if l.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	return time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second * 3 / 4
}

// SameRenewal reports whether two versions of a Lease show the same renewal.
func SameRenewal(a, b *coordinationv1.Lease) bool {
	return equality.Semantic.DeepEqual(a.Spec.RenewTime, b.Spec.RenewTime)
}

// RenewedAt estimates when a Lease that is read now was renewed. known is what was read or written
// at readAt, and its renewal was at renewedAt; known may be nil. renewTime is by the clock of the
// writer. It is believed only as far as the reads permit.
func RenewedAt(read, known *coordinationv1.Lease, now, readAt, renewedAt time.Time) time.Time {
	if known != nil && SameRenewal(read, known) {
		return renewedAt
	}
	if read.Spec.RenewTime == nil {
		return readAt
	}
	estimate := now.Add(-max(now.Sub(read.Spec.RenewTime.Time), 0))
	if known != nil && estimate.Before(readAt) {
		return readAt
	}
	return estimate
}
