package pack

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Part restricts a plan to what may have changed, so that it costs that and not
// what the Service has. The plan is the one Make gives for the whole, if the
// rest is as a plan for the whole would leave it.
//
// Beside it, Endpoints names only the families that change, and in them only the
// endpoints of Pods; a group of which an endpoint of another pod is left is named
// even if it has none of Pods. Slices has at least the slices that hold an
// endpoint of Pods, and all those of a group that is not named.
type Part struct {
	// Pods names the pods whose endpoints may have come, gone or changed.
	Pods map[string]struct{}
	// Others are the slices that are not in Slices. Nil means that there are none.
	Others Others
}

// Others answers for slices that need no look.
type Others interface {
	// Any reports whether a family has one.
	Any(discoveryv1.AddressType) bool
	// In gives those of one family and set of ports, in order of name. It is asked
	// only when endpoints found no place elsewhere.
	In(discoveryv1.AddressType, desired.PortKey) []*discoveryv1.EndpointSlice
}

// keeps reports whether an endpoint found in a slice is known to be as it should be.
func (p *Part) keeps(found *discoveryv1.Endpoint) bool {
	if p == nil || found.TargetRef == nil {
		return false
	}
	_, changed := p.Pods[found.TargetRef.Name]
	return !changed
}

// any reports whether a family has slices beside those given.
func (p *Part) any(of discoveryv1.AddressType) bool {
	return p != nil && p.Others != nil && p.Others.Any(of)
}

// others gives drafts of the slices beside those given, nothing changed in them.
func (p *Part) others(of discoveryv1.AddressType, ports desired.PortKey) []*draft {
	if p == nil || p.Others == nil {
		return nil
	}
	slices := p.Others.In(of, ports)
	drafts := make([]*draft, 0, len(slices))
	for _, slice := range slices {
		drafts = append(drafts, untouched(slice))
	}
	return drafts
}
