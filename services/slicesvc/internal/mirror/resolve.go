package mirror

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

const (
	// maxEndpointsPerSlice and maxPortsPerSlice are the most that kube-apiserver accepts.
	maxEndpointsPerSlice, maxPortsPerSlice = 1000, 20_000
	// maxGroups and maxEndpoints are how many sets of ports and how many endpoints an Endpoints
	// object may have in slices. An object of the largest size that etcd stores has fewer
	// addresses. An object that repeats its addresses for many ports may have more; without a
	// bound, a small object would make very many slices.
	maxGroups, maxEndpoints = 1000, 100_000
	// maxInvalid and maxInvalidLength bound Resolved.Invalid.
	maxInvalid, maxInvalidLength = 10, 64
)

// Limits bound the slices of an Endpoints object.
type Limits struct {
	// PerSubset is how many addresses of a subset are mirrored, both families together, and how
	// many endpoints a slice may have; 1 to 1000.
	PerSubset int
	// Spill tells that the addresses above PerSubset go to further slices instead of being dropped.
	Spill bool
}

// PerSlice returns how many endpoints a slice may have: the limit of a plan.
func (l Limits) PerSlice() int { return min(max(l.PerSubset, 1), maxEndpointsPerSlice) }

// Resolved are the endpoints that an Endpoints object should have in slices.
type Resolved struct {
	// Families has the families that have an endpoint, IPv4 first.
	Families []desired.Family
	// Invalid has the first 10 invalid addresses, in the order of their text. A long one is cut.
	Invalid []string
	// InvalidCount counts the invalid addresses. An address counts once for each set of addresses
	// that some ports share. Addresses above the limit of the set do not count here.
	InvalidCount int
	// TooMany counts the addresses above the limit of their set, which are in no slice.
	TooMany int
}

// Resolve returns the endpoints that the slices of an Endpoints object should have, as upstream
// would have them, with two differences. Ports are compared by value, so equal ports are one. Ports
// of one name are in different groups, because kube-apiserver refuses a slice with both.
func Resolve(endpoints *corev1.Endpoints, limits Limits) Resolved {
	r := repack(endpoints.Subsets)
	var result Resolved
	byFamily := make([][]desired.Group, len(addressTypes()))
	for _, chosen := range r.choose(limits) {
		for _, group := range chosen.groups() {
			for family, endpoints := range chosen.endpoints {
				if len(endpoints) > 0 {
					group.Endpoints = endpoints
					byFamily[family] = append(byFamily[family], group)
				}
			}
		}
	}
	for i, addressType := range addressTypes() {
		if groups := byFamily[i]; len(groups) > 0 {
			slices.SortFunc(groups, func(a, b desired.Group) int { return strings.Compare(string(a.Key), string(b.Key)) })
			result.Families = append(result.Families, desired.Family{AddressType: addressType, Groups: groups})
		}
	}
	result.countDropped(r)
	return result
}

// countDropped counts the entries that are in no slice.
func (r *Resolved) countDropped(from *repackedEndpoints) {
	r.TooMany += from.skipped
	invalid := map[int32]struct{}{}
	for i := range from.subsets {
		for _, entry := range from.subsets[i].entries {
			switch entry.dropped {
			case invalidAddress:
				r.InvalidCount++
				invalid[entry.address] = struct{}{}
			case overLimit:
				r.TooMany++
			}
		}
	}
	for _, number := range slices.Sorted(maps.Keys(invalid)) {
		if len(r.Invalid) == maxInvalid {
			return
		}
		text := from.addresses[number].IP
		r.Invalid = append(r.Invalid, strings.ToValidUTF8(text[:min(len(text), maxInvalidLength)], "\uFFFD"))
	}
}

// dropped says why an entry is in no slice.
type dropped uint8

const (
	notDropped dropped = iota
	duplicate
	overLimit
	invalidAddress
)

// chosenSubset has the endpoints of a repacked subset by family.
type chosenSubset struct {
	ports     [][]discoveryv1.EndpointPort
	endpoints [][]desired.Endpoint
}

// choose sets in each entry whether it is in a slice, and returns the endpoints of each subset.
func (r *repackedEndpoints) choose(limits Limits) []chosenSubset {
	all := make([]chosenSubset, 0, len(r.subsets))
	groups, left := maxGroups, maxEndpoints
	for i := range r.subsets {
		subset := &r.subsets[i]
		limit := limits.PerSlice()
		if limits.Spill {
			limit = len(subset.entries)
		}
		ports := splitByName(subset.ports)
		chosen := chosenSubset{ports: ports[:min(len(ports), groups)]}
		groups -= len(chosen.ports)
		if len(chosen.ports) == 0 {
			limit = 0
		} else {
			limit = min(limit, left/len(chosen.ports))
		}
		taken := r.take(subset.entries, limit)
		left -= taken * len(chosen.ports)
		r.skipped += taken * (len(ports) - len(chosen.ports))
		chosen.endpoints = r.endpoints(subset.entries)
		all = append(all, chosen)
	}
	return all
}

// take marks the entries that the limit drops, and the invalid ones before it. It returns how many
// are left.
func (r *repackedEndpoints) take(entries []entry, limit int) int {
	taken := 0
	for i := range entries {
		switch entry := &entries[i]; {
		case taken >= limit:
			entry.dropped = overLimit
		case r.addresses[entry.address].canonical == "":
			entry.dropped = invalidAddress
		default:
			taken++
		}
	}
	return taken
}

// endpoints returns the endpoints of the entries that are not dropped, by family. Of entries that
// become the same endpoint, the last one stays.
func (r *repackedEndpoints) endpoints(entries []entry) [][]desired.Endpoint {
	counts := make([]int, len(addressTypes()))
	for i := range entries {
		if entries[i].dropped == notDropped {
			counts[r.addresses[entries[i].address].family]++
		}
	}
	byFamily := make([][]desired.Endpoint, len(counts))
	for family, count := range counts {
		byFamily[family] = make([]desired.Endpoint, 0, count)
	}
	known := map[desired.Identity]struct{}{}
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].dropped != notDropped {
			continue
		}
		endpoint, family := r.endpoint(&entries[i])
		if r.mayRepeat {
			if _, later := known[endpoint.Identity]; later {
				entries[i].dropped = duplicate
				continue
			}
			known[endpoint.Identity] = struct{}{}
		}
		byFamily[family] = append(byFamily[family], endpoint)
	}
	return byFamily
}

func (r *repackedEndpoints) endpoint(of *entry) (endpoint desired.Endpoint, family int) {
	from := &r.addresses[of.address]
	endpoint = desired.Endpoint{
		Identity: desired.Identity{Addresses: from.canonical, Hostname: from.Hostname},
		Target:   desired.TargetOf(from.TargetRef),
		Ready:    of.ready,
		Mirrored: true,
	}
	if from.TargetRef != nil {
		endpoint.PodNamespace, endpoint.PodName = from.TargetRef.Namespace, from.TargetRef.Name
	}
	if from.NodeName != nil {
		endpoint.Node = *from.NodeName
	}
	return endpoint, from.family
}

// groups returns the groups of a subset without their endpoints: one, or several if ports have the
// same name.
func (c chosenSubset) groups() []desired.Group {
	groups := make([]desired.Group, len(c.ports))
	for i, ports := range c.ports {
		groups[i] = desired.Group{Key: desired.KeyOf(ports), Ports: ports}
	}
	return groups
}

// splitByName divides sorted ports into as few lists as there can be without two ports of one name
// in a list. The result has at least one list, and no list is nil.
func splitByName(ports []port) [][]discoveryv1.EndpointPort {
	lists := [][]discoveryv1.EndpointPort{make([]discoveryv1.EndpointPort, 0, len(ports))}
	repeated := 0 // how many ports before this one have its name
	for i := range ports {
		repeated++
		if i == 0 || ports[i-1].name != ports[i].name {
			repeated = 0
		}
		for len(lists) <= repeated {
			lists = append(lists, nil)
		}
		lists[repeated] = append(lists[repeated], ports[i].object())
	}
	var bounded [][]discoveryv1.EndpointPort
	for _, list := range lists {
		for len(list) > maxPortsPerSlice {
			bounded = append(bounded, list[:maxPortsPerSlice:maxPortsPerSlice])
			list = list[maxPortsPerSlice:]
		}
		bounded = append(bounded, list)
	}
	return bounded
}

func (p port) object() discoveryv1.EndpointPort {
	object := discoveryv1.EndpointPort{Name: &p.name, Protocol: &p.protocol, Port: &p.number}
	if p.hasAppProtocol {
		object.AppProtocol = &p.appProtocol
	}
	return object
}
