package explain

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// family is the pod in one address family of the Service: what it should have there and what it has.
type family struct {
	addressType discoveryv1.AddressType
	// served is false for a family in which the Service is not served, though a slice still holds the pod.
	served bool
	// wanted is the endpoint that the pod should have, nil for none; without hints where these are not decided by it alone.
	wanted *desired.Endpoint
	ports  desired.PortKey
	// auto says so.
	auto bool
	// places are where slices hold the pod, ordered by slice and position.
	places []place
}

// place is one endpoint of the pod in a slice.
type place struct {
	slice    *discoveryv1.EndpointSlice
	position int
	endpoint desired.Endpoint
	exact    bool
}

// look finds the pod in the families the Service is served in, and in those in which a slice still holds it.
func look(f Facts) []family {
	var wanted []desired.Family
	if f.selected() {
		wanted = desired.Resolve(f.Service, []desired.Candidate{f.Candidate}).Families
	}
	var families []family
	for _, addressType := range desired.Families(f.Service) {
		families = append(families, family{addressType: addressType, served: true})
	}
	for _, slice := range f.Slices {
		served := slices.ContainsFunc(families, func(known family) bool { return known.addressType == slice.AddressType })
		if !served && len(placesIn(f, slice)) > 0 {
			families = append(families, family{addressType: slice.AddressType})
		}
	}
	slices.SortStableFunc(families, func(a, b family) int { return cmp.Compare(a.addressType, b.addressType) })
	for i := range families {
		families[i].fill(f, wanted)
	}
	return families
}

func (m *family) fill(f Facts, wanted []desired.Family) {
	m.auto = hints.ModeOf(f.Service) == hints.Auto
	for _, family := range wanted {
		if family.AddressType == m.addressType && len(family.Groups) > 0 {
			m.wanted, m.ports = &family.Groups[0].Endpoints[0], family.Groups[0].Key
		}
	}
	for _, slice := range f.Slices {
		if slice.AddressType == m.addressType {
			m.places = append(m.places, placesIn(f, slice)...)
		}
	}
	slices.SortStableFunc(m.places, func(a, b place) int { return cmp.Compare(a.slice.Name, b.slice.Name) })
}

func placesIn(f Facts, slice *discoveryv1.EndpointSlice) []place {
	var places []place
	for i := range slice.Endpoints {
		endpoint, exact := desired.Observe(&slice.Endpoints[i])
		if endpoint.PodNamespace == f.Candidate.Pod.Namespace && endpoint.PodName == f.Candidate.Pod.Name {
			places = append(places, place{slice: slice, position: i + 1, endpoint: endpoint, exact: exact})
		}
	}
	return places
}

// settled says whether slices say of the pod what they should, once.
func (m *family) settled() bool {
	switch len(m.places) {
	case 0:
		return m.wanted == nil
	case 1:
		return m.served && m.wanted != nil && m.drift(m.places[0]) == ""
	default:
		return false
	}
}

// drift names what differs between a place and what is wanted; empty when nothing does.
func (m *family) drift(at place) string {
	has, wants := at.endpoint, *m.wanted
	if m.auto {
		has.HintZone, has.HintNode, wants.HintZone, wants.HintNode = "", "", "", ""
	}
	switch {
	case has.PodUID != wants.PodUID:
		return "as an earlier pod of that name"
	case has.Identity != wants.Identity:
		return "with the address " + has.Addresses
	case has.Ready != wants.Ready, has.Serving != wants.Serving, has.Terminating != wants.Terminating:
		return "as " + condition(has)
	case desired.KeyOf(at.slice.Ports) != m.ports:
		return "with the ports " + desired.PortText(at.slice.Ports)
	case has != wants:
		return "with another node, zone or hint"
	case !at.exact:
		return "in words of another writer"
	}
	return ""
}

func condition(endpoint desired.Endpoint) string {
	switch {
	case endpoint.Terminating:
		return "terminating"
	case endpoint.Ready:
		return "ready"
	default:
		return "not ready"
	}
}
