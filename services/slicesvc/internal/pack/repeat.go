package pack

import (
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// TookEndpoints is the annotation of a slice that took endpoints from another slice. It stays until
// Repeat writes the slice once more, also if another replica leads by then.
//
// Some readers keep one set of addresses for a Service, and apply each slice to it alone. When the
// other slice loses the endpoints, such a reader removes their addresses from the set, although
// this slice has them: Linkerd for each event, Cilium if the events of both slices come in
// different batches. The next event of this slice adds the addresses again. kube-apiserver sends no
// event for a write that changes nothing, so the second write removes the annotation.
const TookEndpoints = "trivet.dev/took-endpoints"

// TookEndpointsLately reports whether Repeat must write a slice.
func TookEndpointsLately(slice *discoveryv1.EndpointSlice) bool {
	_, took := slice.Annotations[TookEndpoints]
	return took
}

// Repeat plans to write the slices that took endpoints once more. It makes at most budget writes. A
// slice waits as long as another one has some of its endpoints. The caller lets some time pass
// after the plan that moved the endpoints, so that no reader sees both in one batch.
func Repeat(in Input, budget int) Plan {
	in.ChangeTime = time.Time{} // no endpoint changes
	p := newPlanner(in, nil)
	var all drafts
	for _, slice := range sorted(in.Slices) {
		if len(all.update) < budget && TookEndpointsLately(slice) && p.Owner.owns(slice) && !p.sharesEndpoints(slice) {
			draft := unchangedDraft(slice)
			draft.reason = Repeated
			all.update = append(all.update, draft)
		}
	}
	return p.render(all)
}

// sharesEndpoints reports whether another slice has an endpoint of this one that it should not
// have.
func (p *planner) sharesEndpoints(slice *discoveryv1.EndpointSlice) bool {
	own := map[desired.Identity]struct{}{}
	for i := range slice.Endpoints {
		endpoint, _ := desired.FromObject(&slice.Endpoints[i])
		own[endpoint.Identity] = struct{}{}
	}
	return slices.ContainsFunc(p.Slices, func(other *discoveryv1.EndpointSlice) bool {
		if other.Name == slice.Name || other.AddressType != slice.AddressType {
			return false
		}
		group := p.otherGroup(slice, other)
		return slices.ContainsFunc(other.Endpoints, func(e discoveryv1.Endpoint) bool {
			endpoint, _ := desired.FromObject(&e)
			_, shared := own[endpoint.Identity]
			return shared && !slices.ContainsFunc(group, func(wanted desired.Endpoint) bool { return wanted.Identity == endpoint.Identity })
		})
	})
}

// otherGroup returns what a slice with other ports than the given one should have. A mirrored
// endpoint may have several sets of ports.
func (p *planner) otherGroup(slice, other *discoveryv1.EndpointSlice) []desired.Endpoint {
	key := desired.KeyOf(other.Ports)
	if other.DeletionTimestamp != nil || key == desired.KeyOf(slice.Ports) {
		return nil
	}
	for _, family := range p.Endpoints.Families {
		for i := range family.Groups {
			if family.AddressType == other.AddressType && family.Groups[i].Key == key {
				return family.Groups[i].Endpoints
			}
		}
	}
	return nil
}

// endpointName is what a reader may know an endpoint by: its address or its Pod.
type endpointName struct{ namespace, pod, address string }

func namesOf(endpoint *discoveryv1.Endpoint) []endpointName {
	names := make([]endpointName, 0, len(endpoint.Addresses)+1)
	for _, address := range endpoint.Addresses {
		names = append(names, endpointName{address: address})
	}
	if target := endpoint.TargetRef; target != nil && target.Kind == "Pod" {
		names = append(names, endpointName{namespace: target.Namespace, pod: target.Name})
	}
	return names
}

// markTakers marks the slices of a family that get an endpoint which another slice loses, and the
// slices that lose it. A slice that is being deleted loses all its endpoints.
func (p *planner) markTakers(d *drafts, addressType discoveryv1.AddressType, existing []*discoveryv1.EndpointSlice) {
	takers := slices.DeleteFunc(slices.Concat(d.create, d.update), func(draft *draft) bool { return draft.added == 0 })
	// A Service keeps an endpoint in the slice that took it; see takersFirst.
	returning := p.Owner.Mirror != nil && slices.ContainsFunc(slices.Concat(d.update, d.delete), returns)
	if len(takers) == 0 && !returning {
		return
	}
	losers := map[endpointName][]*draft{}
	lose := func(loser *draft, endpoints []discoveryv1.Endpoint) {
		for i := range endpoints {
			for _, name := range namesOf(&endpoints[i]) {
				losers[name] = append(losers[name], loser)
			}
		}
	}
	for _, draft := range slices.Concat(d.update, d.delete) {
		lose(draft, draft.gone)
	}
	for _, slice := range p.beingDeleted(addressType) {
		lose(nil, slice.Endpoints)
	}
	mark := func(taker *draft, endpoints []discoveryv1.Endpoint, counts func(loser *draft) bool) {
		for i := range endpoints {
			for _, name := range namesOf(&endpoints[i]) {
				for _, loser := range losers[name] {
					if loser == taker || !counts(loser) {
						continue
					}
					taker.takes = true
					if loser != nil && name.address != "" { // a Pod of the same name may be another one
						loser.moved = true
					}
				}
			}
		}
	}
	for _, taker := range takers {
		mark(taker, taker.endpoints[len(taker.endpoints)-taker.added:], func(*draft) bool { return true })
	}
	if returning {
		for _, kept := range p.kept(d, existing) {
			unchanged := !slices.Contains(d.update, kept)
			if mark(kept, kept.endpoints[:len(kept.endpoints)-kept.added], returns); unchanged && kept.takes {
				kept.reason = Repeated
				d.update = append(d.update, kept)
			}
		}
	}
}

// returns reports whether a slice loses endpoints that it took before another slice has lost them.
func returns(loser *draft) bool {
	return loser != nil && len(loser.gone) > 0 && TookEndpointsLately(loser.from)
}

// kept returns the drafts of the existing slices that the plan may update and does not delete.
func (p *planner) kept(d *drafts, existing []*discoveryv1.EndpointSlice) []*draft {
	drafted := map[*discoveryv1.EndpointSlice]*draft{}
	for _, draft := range slices.Concat(d.update, d.delete) {
		drafted[draft.from] = draft
	}
	kept := slices.Clone(d.update)
	for _, slice := range existing {
		if drafted[slice] == nil && p.Owner.canUse(slice) {
			kept = append(kept, unchangedDraft(slice))
		}
	}
	return kept
}

// beingDeleted returns the slices of a family that are being deleted. Plans leave them out.
func (p *planner) beingDeleted(addressType discoveryv1.AddressType) []*discoveryv1.EndpointSlice {
	return slices.DeleteFunc(ofType(p.Slices, addressType), func(slice *discoveryv1.EndpointSlice) bool {
		return slice.DeletionTimestamp == nil
	})
}

// takersFirst orders the slices that took endpoints before the others.
func takersFirst(existing []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	ordered := slices.Clone(existing)
	slices.SortStableFunc(ordered, func(a, b *discoveryv1.EndpointSlice) int {
		switch took := TookEndpointsLately(a); {
		case took == TookEndpointsLately(b):
			return 0
		case took:
			return -1
		default:
			return 1
		}
	})
	return ordered
}
