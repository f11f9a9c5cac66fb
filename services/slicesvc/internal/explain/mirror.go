package explain

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
)

// MirrorFacts is what one replica knows of the Endpoints object with the name of a Service.
type MirrorFacts struct {
	// Namespace and Name are those of the Service, which may not exist.
	Namespace, Name string
	// Endpoints is nil if there is no such object. Its subsets are unknown unless ContentKnown is
	// set.
	Endpoints    *corev1.Endpoints
	ContentKnown bool
	Reason       mirror.Reason
	Limits       mirror.Limits
	// Slices are the mirrored slices of the Service, unordered.
	Slices []*discoveryv1.EndpointSlice
	// Pending says that a sync of the mirrored slices is due, running or failing.
	Pending bool
	// Writer is the field manager that wrote the object last; empty if it is not known.
	Writer string
}

// concernsMirror returns whether the endpoints of the Service come from an Endpoints object: it has
// no selector or does not exist.
func (f *Facts) concernsMirror() bool {
	return f.Mirror != nil && (f.Service == nil || len(f.Service.Spec.Selector) == 0)
}

// resolve returns nothing for an object that is not mirrored.
func (m *MirrorFacts) resolve() mirror.Resolved {
	if m.Endpoints == nil || !m.ContentKnown || m.Reason != "" {
		return mirror.Resolved{}
	}
	return mirror.Resolve(m.Endpoints, m.Limits)
}

// mirrorAddresses returns the addresses that are explained, canonical and each once: the one that
// was asked for, or those of the Pod. Addresses that refer to the Pod come first. A Pod of which
// the object has nothing is explained by its own addresses.
func (f *Facts) mirrorAddresses() []string {
	if f.Address != "" {
		return []string{f.Address}
	}
	pod := f.Candidate.Pod
	var referring, own []string
	if m := f.Mirror; m.Endpoints != nil {
		for _, subset := range m.Endpoints.Subsets {
			for _, address := range slices.Concat(subset.Addresses, subset.NotReadyAddresses) {
				if target := address.TargetRef; target != nil && target.Kind == "Pod" && target.Namespace == pod.Namespace && target.Name == pod.Name {
					referring = append(referring, desired.CanonicalAddress(address.IP))
				}
			}
		}
	}
	for _, ip := range pod.Status.PodIPs {
		own = append(own, desired.CanonicalAddress(ip.IP))
	}
	var addresses []string
	for _, address := range append(referring, own...) {
		if !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// mirrorFamily has the explained addresses of one family.
type mirrorFamily struct {
	addressType discoveryv1.AddressType
	addresses   []string
	// origins are the places of the addresses in the Endpoints object.
	origins []mirror.Origin
	// planned are the endpoints that the slices should have, places those that they have, former
	// those in slices of the selector that the Service had.
	planned        []plannedMirror
	places, former []place
}

type plannedMirror struct {
	ports    desired.PortKey
	endpoint desired.Endpoint
}

// families returns one family at least, so that a chain has all links.
func (m *MirrorFacts) families(addresses []string) []mirrorFamily {
	var families []mirrorFamily
	for _, address := range addresses {
		addressType, _ := desired.FamilyOf(address)
		place := slices.IndexFunc(families, func(known mirrorFamily) bool { return known.addressType == addressType })
		if place < 0 {
			place, families = len(families), append(families, mirrorFamily{addressType: addressType})
		}
		families[place].addresses = append(families[place].addresses, address)
		if m.Endpoints != nil && m.ContentKnown {
			families[place].origins = append(families[place].origins, mirror.Explain(m.Endpoints, m.Limits, address)...)
		}
	}
	if len(families) == 0 {
		return []mirrorFamily{{addressType: discoveryv1.AddressTypeIPv4}}
	}
	slices.SortStableFunc(families, func(a, b mirrorFamily) int { return cmp.Compare(a.addressType, b.addressType) })
	return families
}

// fill sets what the slices have of the addresses, and what they should have.
func (m *mirrorFamily) fill(f Facts, resolved mirror.Resolved) {
	for _, family := range resolved.Families {
		if family.AddressType != m.addressType {
			continue
		}
		for _, group := range family.Groups {
			for i := range group.Endpoints {
				if slices.Contains(m.addresses, group.Endpoints[i].Addresses) {
					m.planned = append(m.planned, plannedMirror{ports: group.Key, endpoint: group.Endpoints[i]})
				}
			}
		}
	}
	for _, address := range m.addresses {
		m.places = append(m.places, placesOfAddress(f.Mirror.Slices, m.addressType, address)...)
		m.former = append(m.former, placesOfAddress(f.Slices, m.addressType, address)...)
	}
}

func placesOfAddress(all []*discoveryv1.EndpointSlice, family discoveryv1.AddressType, address string) []place {
	ofFamily := slices.DeleteFunc(slices.Clone(all), func(slice *discoveryv1.EndpointSlice) bool { return slice.AddressType != family })
	return addressPlaces(Facts{Slices: ofFamily, Address: address})
}

// settled returns whether the slices have exactly the planned endpoints.
func (m *mirrorFamily) settled() bool { return len(m.places) == len(m.planned) && m.missing() == nil }

// missing returns the first planned endpoint that no slice has; nil if there is none.
func (m *mirrorFamily) missing() *plannedMirror {
	places := slices.Clone(m.places)
	for i := range m.planned {
		found := slices.IndexFunc(places, m.planned[i].isAt)
		if found < 0 {
			return &m.planned[i]
		}
		places = slices.Delete(places, found, found+1)
	}
	return nil
}

func (p *plannedMirror) isAt(at place) bool {
	has, wants := at.endpoint, p.endpoint
	return desired.KeyOf(at.slice.Ports) == p.ports && has.Identity == wants.Identity && has.Ready == wants.Ready && has.Node == wants.Node
}
