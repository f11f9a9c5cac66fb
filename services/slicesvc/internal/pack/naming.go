package pack

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

const (
	// maxName keeps names usable as label values, well below the 253 characters an object's name may have.
	maxName = 63
	// hashLength characters of five bits each make two names of one Service collide about never.
	hashLength = 10
)

// naming gives names to new slices: made from the Service, the family, the
// ports and a running number, so that writers with the same view choose the
// same names and the second of them is refused instead of doubling a slice.
type naming struct {
	service string
	uid     types.UID
	taken   func(string) bool
	used    map[string]struct{}
	// ordinals hold the next number to try.
	ordinals map[purpose]uint64
}

// purpose is what slices that differ only in their number have in common.
type purpose struct {
	addressType discoveryv1.AddressType
	ports       desired.PortKey
}

func newNaming(in Input) *naming {
	used := make(map[string]struct{}, len(in.Slices))
	for _, slice := range in.Slices {
		used[slice.Name] = struct{}{}
	}
	taken := in.Taken
	if taken == nil {
		taken = func(string) bool { return false }
	}
	return &naming{
		service:  in.Service.Name,
		uid:      in.Service.UID,
		taken:    taken,
		used:     used,
		ordinals: map[purpose]uint64{},
	}
}

// next gives the first free name for a further slice of that family and ports.
func (n *naming) next(addressType discoveryv1.AddressType, ports desired.PortKey) string {
	of := purpose{addressType: addressType, ports: ports}
	for {
		name := sliceName(n.service, n.uid, of, n.ordinals[of])
		n.ordinals[of]++
		if _, used := n.used[name]; !used && !n.taken(name) {
			n.used[name] = struct{}{}
			return name
		}
	}
}

// sliceName is the Service's name, shortened if it must be, and a hash of what the slice is for.
func sliceName(service string, uid types.UID, of purpose, ordinal uint64) string {
	hash := sha256.New()
	for _, part := range []string{string(uid), string(of.addressType), string(of.ports)} {
		hash.Write(binary.AppendUvarint(nil, uint64(len(part))))
		hash.Write([]byte(part))
	}
	hash.Write(binary.AppendUvarint(nil, ordinal))
	suffix := strings.ToLower(base32.StdEncoding.EncodeToString(hash.Sum(nil)))[:hashLength]
	prefix := service[:min(len(service), maxName-hashLength-1)]
	return strings.TrimRight(prefix, "-.") + "-" + suffix
}
