package leaseobject

import (
	"encoding/hex"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Known is a Lease as it was last seen, in 48 bytes: enough to write it again without reading it. Of a Lease that carries
// what this package does not write, the whole is kept. The zero Known is of none.
type LeaseRecord struct {
	uid     [16]byte
	version uint64
	// renewed is in microseconds since 1970, the resolution of the wire.
	renewed int64
	seconds int32
	// bond is the fingerprint of what the Lease belongs to: the UID of its Node, or its class.
	ownerHash uint32
	// whole is set when the Lease is not as this package would have made it; then it holds all that is known.
	whole *coordinationv1.Lease
}

// Know returns what there is to know of a Lease, and keeps nothing of it.
func NewLeaseRecord(lease *coordinationv1.Lease) LeaseRecord {
	k := LeaseRecord{}
	uid, named := parseUID(lease.UID)
	version, err := strconv.ParseUint(lease.ResourceVersion, 10, 64)
	bond, plain := ownerHashOf(lease)
	if !named || err != nil || strconv.FormatUint(version, 10) != lease.ResourceVersion || !plain {
		k.whole = withoutManagedFields(lease.DeepCopy())
		return k
	}
	k.uid, k.version, k.ownerHash = uid, version, bond
	k.renewed, k.seconds = lease.Spec.RenewTime.UnixMicro(), *lease.Spec.LeaseDurationSeconds
	return k
}

// bondOf returns the fingerprint of what a Lease belongs to, if there is nothing in it that fresh would not put there, but
// for times.
func ownerHashOf(lease *coordinationv1.Lease) (bond uint32, plain bool) {
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
		return fingerprint(string(owner.UID)), owner == ownedBy(lease.Name, owner.UID)
	case len(lease.Labels) == 1 && class != "" && len(lease.OwnerReferences) == 0:
		return fingerprint(class), true
	}
	return 0, false
}

// Exists tells whether there was a Lease.
func (k *LeaseRecord) Exists() bool { return k.whole != nil || k.uid != [16]byte{} }

// ResourceVersion is that of the Lease; empty when there was none.
func (k *LeaseRecord) ResourceVersion() string {
	switch {
	case k.whole != nil:
		return k.whole.ResourceVersion
	case !k.Exists():
		return ""
	}
	return strconv.FormatUint(k.version, 10)
}

// RenewTime is that of the Lease; zero when it had none.
func (k *LeaseRecord) RenewTime() time.Time {
	switch {
	case k.whole == nil && k.Exists():
		return time.UnixMicro(k.renewed)
	case k.whole == nil || k.whole.Spec.RenewTime == nil:
		return time.Time{}
	}
	return k.whole.Spec.RenewTime.Time
}

// Duration is how long after its RenewTime readers take the holder of the Lease for alive.
func (k *LeaseRecord) Duration() time.Duration {
	switch {
	case k.whole == nil:
		return time.Duration(k.seconds) * time.Second
	case k.whole.Spec.LeaseDurationSeconds == nil:
		return 0
	}
	return time.Duration(*k.whole.Spec.LeaseDurationSeconds) * time.Second
}

// UID is that of the Lease; empty when there was none.
func (k *LeaseRecord) UID() types.UID {
	switch {
	case k.whole != nil:
		return k.whole.UID
	case !k.Exists():
		return ""
	}
	return formatUID(k.uid)
}

// Writable tells whether the Lease is, or can become, that of the holder with this name.
func (k *LeaseRecord) Writable(holder string) bool {
	if k.whole == nil {
		return k.Exists()
	}
	by := k.whole.Spec.HolderIdentity
	return k.whole.DeletionTimestamp == nil && (by == nil || *by == "" || *by == holder)
}

// restore returns the Lease that is known; false when it has to be read, because there was none or it belongs to something
// else than the renewal says.
func (k *LeaseRecord) Lease(r LeaseUpdate, node types.UID) (*coordinationv1.Lease, bool) {
	if k.whole != nil {
		return k.whole, true
	}
	if !k.Exists() || k.ownerHash != fingerprint(r.owner(node)) {
		return nil, false
	}
	lease := NewLease(r, node)
	lease.UID, lease.ResourceVersion = k.UID(), k.ResourceVersion()
	lease.Spec.RenewTime = &metav1.MicroTime{Time: k.RenewTime()}
	lease.Spec.LeaseDurationSeconds = new(k.seconds)
	return lease, true
}

// fingerprint of two different UIDs is equal once in four billion pairs. Then a Lease gets the owner that the cache of Nodes
// says, without the question back.
func fingerprint(s string) uint32 {
	hash := fnv.New32a()
	hash.Write([]byte(s))
	return hash.Sum32()
}

// The groups of a UID, as offsets and lengths in its text.
var uidDashes = [...]int{8, 13, 18, 23}

// parseUID reads a UID in the one form that kube-apiservers write.
func parseUID(uid types.UID) (parsed [16]byte, ok bool) {
	digits := strings.ReplaceAll(string(uid), "-", "")
	if len(digits) != 2*len(parsed) {
		return parsed, false
	}
	if _, err := hex.Decode(parsed[:], []byte(digits)); err != nil {
		return parsed, false
	}
	return parsed, parsed != [16]byte{} && formatUID(parsed) == uid
}

func formatUID(uid [16]byte) types.UID {
	var text [36]byte
	digits := hex.AppendEncode(make([]byte, 0, 32), uid[:])
	copy(text[:8], digits[:8])
	copy(text[9:13], digits[8:12])
	copy(text[14:18], digits[12:16])
	copy(text[19:23], digits[16:20])
	copy(text[24:], digits[20:])
	for _, at := range uidDashes {
		text[at] = '-'
	}
	return types.UID(text[:])
}

// wholeSeconds is what of d fits into leaseDurationSeconds, at least one.
func wholeSeconds(d time.Duration) int32 {
	return int32(min(max(d/time.Second, 1), math.MaxInt32))
}
