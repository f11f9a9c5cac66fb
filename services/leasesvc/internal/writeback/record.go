package writeback

import (
	"hash/fnv"
	"strconv"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LeaseRecord is the last known state of a Lease, in 48 bytes. It is enough to write the Lease
// again without a read. A Lease with content that this package does not write is kept whole. The
// zero LeaseRecord means that no Lease is known.
type LeaseRecord struct {
	uid     uuid.UUID
	version uint64
	// renewed is the renewTime in microseconds since 1970, the resolution on the wire.
	renewed int64
	seconds int32
	// ownerHash is the hash of the UID of the owning Node, or of the class.
	ownerHash uint32
	// whole is set if the Lease differs from what NewLease makes; then no other field is used.
	whole *coordinationv1.Lease
}

// NewLeaseRecord returns the record of a Lease. It keeps no reference to lease.
func NewLeaseRecord(lease *coordinationv1.Lease) LeaseRecord {
	r := LeaseRecord{}
	uid, uidOK := parseUID(lease.UID)
	version, err := strconv.ParseUint(lease.ResourceVersion, 10, 64)
	ownerHash, plain := ownerHashOf(lease)
	if !uidOK || err != nil || strconv.FormatUint(version, 10) != lease.ResourceVersion || !plain {
		r.whole = lease.DeepCopy()
		// Managed fields are half of a Lease. The kube-apiserver keeps them if an update has none.
		r.whole.ManagedFields = nil
		return r
	}
	r.uid, r.version, r.ownerHash = uid, version, ownerHash
	r.renewed, r.seconds = lease.Spec.RenewTime.UnixMicro(), *lease.Spec.LeaseDurationSeconds
	return r
}

// ownerHashOf returns the hash of the owner. plain is false if the Lease has content beside the
// times that NewLease does not write.
func ownerHashOf(lease *coordinationv1.Lease) (ownerHash uint32, plain bool) {
	spec := &lease.Spec
	switch {
	case lease.DeletionTimestamp != nil, len(lease.Annotations) > 0, len(lease.Finalizers) > 0, lease.GenerateName != "":
		return 0, false
	case !HeldBy(lease, lease.Name), spec.LeaseDurationSeconds == nil, spec.RenewTime == nil:
		return 0, false
	case spec.AcquireTime != nil, spec.LeaseTransitions != nil, spec.Strategy != nil, spec.PreferredHolder != nil:
		return 0, false
	}
	class := lease.Labels[ClassLabel]
	switch {
	case len(lease.Labels) == 0 && len(lease.OwnerReferences) == 1:
		owner := lease.OwnerReferences[0]
		return hashOwner(string(owner.UID)), owner == nodeReference(lease.Name, owner.UID)
	case len(lease.Labels) == 1 && class != "" && len(lease.OwnerReferences) == 0:
		return hashOwner(class), true
	}
	return 0, false
}

// Exists reports whether the record is of a Lease.
func (r *LeaseRecord) Exists() bool { return r.whole != nil || r.uid != uuid.Nil }

// ResourceVersion returns the resourceVersion; empty for the zero record.
func (r *LeaseRecord) ResourceVersion() string {
	switch {
	case r.whole != nil:
		return r.whole.ResourceVersion
	case !r.Exists():
		return ""
	}
	return strconv.FormatUint(r.version, 10)
}

// RenewTime returns the renewTime; zero if there is none.
func (r *LeaseRecord) RenewTime() time.Time {
	switch {
	case r.whole == nil && r.Exists():
		return time.UnixMicro(r.renewed)
	case r.whole == nil || r.whole.Spec.RenewTime == nil:
		return time.Time{}
	}
	return r.whole.Spec.RenewTime.Time
}

// Duration returns leaseDurationSeconds; 0 if there is none.
func (r *LeaseRecord) Duration() time.Duration {
	switch {
	case r.whole == nil:
		return time.Duration(r.seconds) * time.Second
	case r.whole.Spec.LeaseDurationSeconds == nil:
		return 0
	}
	return time.Duration(*r.whole.Spec.LeaseDurationSeconds) * time.Second
}

// UID returns the UID; empty for the zero record.
func (r *LeaseRecord) UID() types.UID {
	switch {
	case r.whole != nil:
		return r.whole.UID
	case !r.Exists():
		return ""
	}
	return types.UID(r.uid.String())
}

// Writable reports whether UpdatedLease would accept the Lease for the holder.
func (r *LeaseRecord) Writable(holder string) bool {
	if r.whole == nil {
		return r.Exists()
	}
	by := r.whole.Spec.HolderIdentity
	return r.whole.DeletionTimestamp == nil && (by == nil || *by == "" || *by == holder)
}

// Lease returns the recorded Lease, which the caller must not change. It is false if the Lease must
// be read instead: none is known, or its owner is not the one of the update.
func (r *LeaseRecord) Lease(u LeaseUpdate, node types.UID) (*coordinationv1.Lease, bool) {
	if r.whole != nil {
		return r.whole, true
	}
	if !r.Exists() || r.ownerHash != hashOwner(u.owner(node)) {
		return nil, false
	}
	lease := NewLease(u, node)
	lease.UID, lease.ResourceVersion = r.UID(), r.ResourceVersion()
	lease.Spec.RenewTime = &metav1.MicroTime{Time: r.RenewTime()}
	lease.Spec.LeaseDurationSeconds = new(r.seconds)
	return lease, true
}

// hashOwner collides for two UIDs once in four billion pairs. The Lease then gets the owner from
// the Node cache without a confirmation by the kube-apiserver.
func hashOwner(s string) uint32 {
	hash := fnv.New32a()
	hash.Write([]byte(s))
	return hash.Sum32()
}

// parseUID reads a UID in the lower-case form that kube-apiservers write. ok is false for any other
// form.
func parseUID(uid types.UID) (parsed uuid.UUID, ok bool) {
	parsed, err := uuid.Parse(string(uid))
	return parsed, err == nil && parsed != uuid.Nil && parsed.String() == string(uid)
}
