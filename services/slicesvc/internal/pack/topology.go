package pack

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// FamilyHints is what became of a Service's wish for hints in one family.
type FamilyHints struct {
	AddressType discoveryv1.AddressType
	hints.Verdict
}

// hinted gives the endpoints with the hints of all modes, and what became of
// them for each family; nothing for a Service that wants none, or for a part,
// from which it cannot be told.
func hinted(in Input, existing []*discoveryv1.EndpointSlice) (desired.Endpoints, []FamilyHints) {
	mode := hints.ModeOf(in.Service)
	if mode == hints.Off || in.Part != nil {
		return in.Endpoints, nil
	}
	all := in.Endpoints
	all.Families = slices.Clone(all.Families)
	verdicts := make([]FamilyHints, 0, len(all.Families))
	for i, family := range all.Families {
		verdict := near(mode, family)
		if mode == hints.Auto {
			all.Families[i], verdict = allocated(in, family, existing)
		}
		verdicts = append(verdicts, FamilyHints{AddressType: family.AddressType, Verdict: verdict})
	}
	return all, verdicts
}

// near judges the hints of single endpoints: kube-proxy looks at those of one
// kind only when every ready endpoint has one.
func near(mode hints.Mode, family desired.Family) hints.Verdict {
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

// allocated gives a family's endpoints the hints of the topology annotation.
func allocated(in Input, family desired.Family, existing []*discoveryv1.EndpointSlice) (desired.Family, hints.Verdict) {
	now := observedHints(in, ofType(existing, family.AddressType))
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
			found := now[endpoint.Identity]
			found.Zone, found.Key = endpoint.Zone, keyOf(endpoint.Identity)
			ready = append(ready, endpoint)
			toAllocate = append(toAllocate, found)
		}
	}
	zones, verdict := hints.Allocate(in.Zones, toAllocate)
	for i, zone := range zones {
		ready[i].HintZone = zone
	}
	family.Groups = groups
	return family, verdict
}

// observedHints gives the zone that each endpoint is meant for now, and where it lies.
func observedHints(in Input, existing []*discoveryv1.EndpointSlice) map[desired.Identity]hints.Endpoint {
	found := map[desired.Identity]hints.Endpoint{}
	for _, slice := range existing {
		if !owned(slice, in.Service) {
			continue
		}
		for i := range slice.Endpoints {
			endpoint, _ := desired.Observe(&slice.Endpoints[i])
			if _, repeated := found[endpoint.Identity]; !repeated {
				found[endpoint.Identity] = hints.Endpoint{Hint: endpoint.HintZone, Slice: slice.Name}
			}
		}
	}
	return found
}

func keyOf(identity desired.Identity) string {
	return identity.Addresses + " " + identity.PodName + " " + identity.Hostname
}
