package pack

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// draft is a slice that a plan may write.
type draft struct {
	// from is the existing slice; nil for a new one.
	from        *discoveryv1.EndpointSlice
	addressType discoveryv1.AddressType
	ports       []discoveryv1.EndpointPort
	// key is the key of ports for the name of a new slice; empty for a placeholder.
	key       desired.PortKey
	endpoints []discoveryv1.Endpoint

	reason                  Reason
	added, removed, changed int
	// gone are the endpoints that the slice loses.
	gone []discoveryv1.Endpoint
	// moved tells that other slices get endpoints that the slice loses, or other endpoints of the
	// Pods of a deleted slice.
	moved bool
	// takes tells that the slice gets endpoints that another slice loses.
	takes bool
	// duplicate tells that other slices have all endpoints of a slice that is not needed.
	duplicate bool
}

// unchangedDraft returns the draft of a slice that is as it should be. To append to its endpoints
// copies them.
func unchangedDraft(slice *discoveryv1.EndpointSlice) *draft {
	return &draft{
		from:        slice,
		addressType: slice.AddressType,
		ports:       slice.Ports,
		endpoints:   slices.Clip(slice.Endpoints),
		reason:      EndpointsChanged,
	}
}

// touched reports whether endpoints were added, removed or changed.
func (d *draft) touched() bool { return d.added+d.removed+d.changed > 0 }

// take adds endpoints up to the limit and returns the remaining ones.
func (d *draft) take(endpoints []desired.Endpoint, limit int) []desired.Endpoint {
	n := max(min(limit-len(d.endpoints), len(endpoints)), 0)
	for i := range n {
		d.endpoints = append(d.endpoints, endpoints[i].Object())
	}
	d.added += n
	if d.from != nil && d.touched() && d.reason != Recycled {
		d.reason = EndpointsChanged
	}
	return endpoints[n:]
}

func (d *draft) change(verb planned.Verb, slice *discoveryv1.EndpointSlice) Change {
	return Change{
		Verb:    verb,
		Slice:   slice,
		From:    d.from,
		Reason:  d.reason,
		Added:   d.added,
		Removed: d.removed,
		Changed: d.changed,
		Moved:   d.moved,
		Takes:   d.takes,
	}
}

// drafts are the writes for a part of a Service.
type drafts struct {
	create, update, delete []*draft
}

func (d *drafts) append(other drafts) {
	d.create = append(d.create, other.create...)
	d.update = append(d.update, other.update...)
	d.delete = append(d.delete, other.delete...)
}

// drop deletes a slice.
func (d *drafts) drop(slice *discoveryv1.EndpointSlice, reason Reason) {
	d.delete = append(d.delete, &draft{
		from:        slice,
		addressType: slice.AddressType,
		ports:       slice.Ports,
		reason:      reason,
		removed:     len(slice.Endpoints),
		gone:        slice.Endpoints,
	})
}

// markMoved marks the emptied slices whose Pods have endpoints elsewhere, with another address or
// hostname. These endpoints must be written before the slice is deleted.
func (d *drafts) markMoved(family desired.Family) {
	var wanted map[desired.Target]struct{} // made when it is needed, which is rare
	for _, dropped := range d.delete {
		if dropped.reason != Emptied {
			continue
		}
		if wanted == nil {
			wanted = podsOf(family)
		}
		dropped.moved = slices.ContainsFunc(dropped.from.Endpoints, func(gone discoveryv1.Endpoint) bool {
			if gone.TargetRef == nil {
				return false
			}
			_, elsewhere := wanted[desired.Target(gone.TargetRef.UID)]
			return elsewhere
		})
	}
}

// podsOf returns the UIDs of the Pods that have endpoints in a family.
func podsOf(family desired.Family) map[desired.Target]struct{} {
	pods := map[desired.Target]struct{}{}
	for _, group := range family.Groups {
		for i := range group.Endpoints {
			pods[group.Endpoints[i].Target] = struct{}{}
		}
	}
	return pods
}

// byExisting orders drafts by the names of their existing slices.
func byExisting(a, b *draft) int { return cmp.Compare(a.from.Name, b.from.Name) }
