package pack

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// hinted returns the wanted families with the hints of all modes, and what became of them in each
// family: nothing for a Service that wants no hints, for an Endpoints object, or for the plan of a
// change, which cannot tell.
func (p *planner) hinted(existing []*discoveryv1.EndpointSlice) ([]desired.Family, []FamilyHints) {
	if p.scope != nil || p.Owner.Mirror != nil {
		return p.Endpoints.Families, nil
	}
	mode := hints.ModeOf(p.Service)
	if mode == hints.Off {
		return p.Endpoints.Families, nil
	}
	families := slices.Clone(p.Endpoints.Families)
	verdicts := make([]FamilyHints, 0, len(families))
	for i, family := range families {
		verdict := distributionVerdict(mode, family)
		if mode == hints.Auto {
			families[i], verdict = p.allocated(family, existing)
		}
		verdicts = append(verdicts, FamilyHints{AddressType: family.AddressType, Verdict: verdict})
	}
	return families, verdicts
}

// distributionVerdict judges the hints that desired.Resolve sets: kube-proxy follows those of one
// kind only when every ready endpoint has one.
func distributionVerdict(mode hints.Mode, family desired.Family) hints.Verdict {
	ready, withoutZone, withoutNode := 0, 0, 0
	for _, group := range family.Groups {
		for i := range group.Endpoints {
			endpoint := &group.Endpoints[i]
			if !endpoint.Ready {
				continue
			}
			ready++
			if endpoint.HintZone == "" {
				withoutZone++
			}
			if endpoint.HintNode == "" {
				withoutNode++
			}
		}
	}
	switch {
	case ready == 0:
		return hints.Verdict{Problem: "no endpoint is ready"}
	case withoutZone == 0, mode == hints.SameNode && withoutNode == 0:
		return hints.Verdict{Hinted: true}
	default:
		return hints.Verdict{Problem: fmt.Sprintf("%d of %d ready endpoints are in no known zone, and kube-proxy looks at hints only when each has one", withoutZone, ready)}
	}
}

// allocated returns a family whose ready endpoints have the hints of mode Auto.
func (p *planner) allocated(family desired.Family, existing []*discoveryv1.EndpointSlice) (desired.Family, hints.Verdict) {
	current := p.currentHints(ofType(existing, family.AddressType))
	groups := make([]desired.Group, len(family.Groups))
	var ready []*desired.Endpoint
	var toAllocate []hints.Endpoint
	for i, group := range family.Groups {
		group.Endpoints = slices.Clone(group.Endpoints)
		groups[i] = group
		for j := range group.Endpoints {
			endpoint := &group.Endpoints[j]
			if !endpoint.Ready {
				continue
			}
			found := current[endpoint.Identity]
			found.Zone, found.Key = endpoint.Zone, endpointKey(endpoint.Identity)
			ready = append(ready, endpoint)
			toAllocate = append(toAllocate, found)
		}
	}
	zones, verdict := hints.Allocate(p.Shares, toAllocate)
	for i, zone := range zones {
		ready[i].HintZone = zone
	}
	family.Groups = groups
	return family, verdict
}

// currentHints returns the zone hint of each endpoint in the slices, and its slice.
func (p *planner) currentHints(existing []*discoveryv1.EndpointSlice) map[desired.Identity]hints.Endpoint {
	found := map[desired.Identity]hints.Endpoint{}
	for _, slice := range existing {
		if !p.Owner.owns(slice) {
			continue
		}
		for i := range slice.Endpoints {
			endpoint, _ := desired.FromObject(&slice.Endpoints[i])
			if _, duplicate := found[endpoint.Identity]; !duplicate {
				found[endpoint.Identity] = hints.Endpoint{Hint: endpoint.HintZone, Slice: slice.Name}
			}
		}
	}
	return found
}

func endpointKey(identity desired.Identity) string {
	return identity.Addresses + " " + identity.PodName + " " + identity.Hostname
}
