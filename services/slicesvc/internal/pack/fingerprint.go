package pack

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// fingerprintSize is the number of bytes of a fingerprint.
const fingerprintSize = 16

// Fingerprint identifies what the plan would write for an owner, and the versions of the slices
// that it was made from. Equal inputs have equal fingerprints on every replica. The time of the
// change is not part of it, because two plans of one state may be made for different causes.
func (p Plan) Fingerprint(owner Owner) string {
	sum := fingerprint{Hash: sha256.New()}
	sum.text(string(owner.Object.UID))
	for i := range p.Changes {
		sum.change(&p.Changes[i])
		if owner.Mirror != nil && p.Changes[i].Verb != planned.Delete {
			sum.texts(p.Changes[i].Slice.Annotations)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:fingerprintSize])
}

// fingerprint hashes values so that different sequences of values have different hashes.
type fingerprint struct{ hash.Hash }

func (f fingerprint) text(values ...string) {
	for _, value := range values {
		f.Write(binary.AppendUvarint(nil, uint64(len(value))))
		f.Write([]byte(value))
	}
}

func (f fingerprint) count(n int) { f.Write(binary.AppendUvarint(nil, uint64(n))) }

func (f fingerprint) change(change *Change) {
	slice := change.Slice
	f.text(string(change.Verb), slice.Name, string(slice.UID), slice.ResourceVersion, string(change.Reason))
	if change.Verb == planned.Delete {
		return
	}
	f.text(string(slice.AddressType), string(desired.KeyOf(slice.Ports)))
	f.texts(slice.Labels)
	f.count(len(slice.Endpoints))
	for i := range slice.Endpoints {
		f.endpoint(&slice.Endpoints[i])
	}
}

func (f fingerprint) texts(byKey map[string]string) {
	f.count(len(byKey))
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		f.text(key, byKey[key])
	}
}

// endpoint hashes an endpoint of a plan, which desired.FromObject reads completely.
func (f fingerprint) endpoint(object *discoveryv1.Endpoint) {
	e, _ := desired.FromObject(object)
	f.text(e.Addresses, e.Hostname, e.PodNamespace, e.PodName, string(e.Target), e.Node, e.Zone, e.HintZone, e.HintNode)
	conditions := 0
	for i, condition := range []bool{e.Ready, e.Serving, e.Terminating, e.Mirrored} {
		if condition {
			conditions |= 1 << i
		}
	}
	f.count(conditions)
}
