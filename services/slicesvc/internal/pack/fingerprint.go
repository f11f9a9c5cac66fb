package pack

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// fingerprintSize is the number of bytes of a fingerprint.
const fingerprintSize = 16

// Fingerprint identifies what the plan would write for a Service, and the versions of the slices
// that it was made from. Equal inputs have equal fingerprints on every replica. The time of the
// change is not part of it, because two plans of one state may be made for different causes.
func (p Plan) Fingerprint(service *corev1.Service) string {
	sum := fingerprint{Hash: sha256.New()}
	sum.text(string(service.UID))
	for i := range p.Changes {
		sum.change(&p.Changes[i])
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
	if change.Verb == Delete {
		return
	}
	f.text(string(slice.AddressType), string(desired.KeyOf(slice.Ports)))
	f.labels(slice.Labels)
	f.count(len(slice.Endpoints))
	for i := range slice.Endpoints {
		f.endpoint(&slice.Endpoints[i])
	}
}

func (f fingerprint) labels(labels map[string]string) {
	f.count(len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		f.text(key, labels[key])
	}
}

// endpoint hashes an endpoint of a plan, which desired.FromObject reads completely.
func (f fingerprint) endpoint(object *discoveryv1.Endpoint) {
	e, _ := desired.FromObject(object)
	f.text(e.Addresses, e.Hostname, e.PodNamespace, e.PodName, string(e.PodUID), e.Node, e.Zone, e.HintZone, e.HintNode)
	conditions := 0
	for i, condition := range []bool{e.Ready, e.Serving, e.Terminating} {
		if condition {
			conditions |= 1 << i
		}
	}
	f.count(conditions)
}
