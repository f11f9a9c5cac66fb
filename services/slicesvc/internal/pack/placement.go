package pack

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Placement is where the endpoints of one Service lie.
type Placement struct {
	families [families]family
	// shelves has every slice by its name.
	shelves map[string]*shelf
	// pods has the slices that hold a pod's endpoints.
	pods map[string]spots
}

// families are IPv4 and IPv6. A Service that has slices of any other type is not settled.
const families = 2

// spots are where a pod's endpoints are, one in each family at most.
type spots [families]*shelf

// family is the slices of one address family.
type family struct {
	groups map[desired.PortKey]*group
	// empty has the groups without an endpoint, which is one at most: the
	// placeholder's.
	empty map[*group]struct{}
	// slices counts all of them.
	slices int
}

// group is the slices of one set of ports.
type group struct {
	key       desired.PortKey
	ports     []discoveryv1.EndpointPort
	endpoints int
	// shelves are in order of name.
	shelves []*shelf
}

// shelf is one slice.
type shelf struct {
	slice  *discoveryv1.EndpointSlice
	family int
	group  *group
}

// NewPlacement takes in the slices of a Service for which a plan for the whole is empty,
// without those being deleted. ok is false when they cannot be the outcome of one.
func NewPlacement(all []*discoveryv1.EndpointSlice) (p *Placement, ok bool) {
	endpoints := 0
	for _, slice := range all {
		endpoints += len(slice.Endpoints)
	}
	p = &Placement{
		shelves: make(map[string]*shelf, len(all)),
		pods:    make(map[string]spots, endpoints),
	}
	for i := range p.families {
		p.families[i] = family{groups: map[desired.PortKey]*group{}, empty: map[*group]struct{}{}}
	}
	for _, slice := range all {
		if slice.DeletionTimestamp == nil && !p.Wrote(slice) {
			return nil, false
		}
	}
	return p, true
}

// Endpoints is how many endpoints the slices hold.
func (p *Placement) Endpoints() int {
	sum := 0
	for _, shelf := range p.shelves {
		sum += len(shelf.slice.Endpoints)
	}
	return sum
}

// Slack reports whether the endpoints might lie in fewer slices of that size.
func (p *Placement) Slack(limit int) bool {
	for i := range p.families {
		for _, of := range p.families[i].groups {
			if len(of.shelves) > max((of.endpoints+limit-1)/limit, 1) {
				return true
			}
		}
	}
	return false
}

// Wrote takes in a slice as a write left it. ok is false when it cannot be kept
// account of; the Placement is of no use then.
func (p *Placement) Wrote(slice *discoveryv1.EndpointSlice) (ok bool) {
	number, ok := numberOf(slice.AddressType)
	if !ok {
		return false
	}
	entry := p.shelves[slice.Name]
	if entry == nil {
		entry = &shelf{family: number}
		p.shelves[slice.Name] = entry
		p.families[number].slices++
	}
	if entry.family != number {
		return false
	}
	before := entry.slice
	entry.slice = slice
	p.file(entry, before)
	return p.locate(entry, before, slice)
}

// Deleted takes note that a slice was deleted.
func (p *Placement) Deleted(name string) {
	entry := p.shelves[name]
	if entry == nil {
		return
	}
	p.forget(entry, entry.slice.Endpoints)
	p.unfile(entry, len(entry.slice.Endpoints))
	p.families[entry.family].slices--
	delete(p.shelves, name)
}

// file puts a shelf, whose slice was another before, under its group.
func (p *Placement) file(entry *shelf, before *discoveryv1.EndpointSlice) {
	family := &p.families[entry.family]
	if before != nil {
		if sameArray(before.Ports, entry.slice.Ports) {
			entry.group.endpoints += len(entry.slice.Endpoints) - len(before.Endpoints)
			family.note(entry.group)
			return
		}
		p.unfile(entry, len(before.Endpoints))
	}
	key := desired.KeyOf(entry.slice.Ports)
	filed := family.groups[key]
	if filed == nil {
		filed = &group{key: key, ports: entry.slice.Ports}
		family.groups[key] = filed
	}
	at, _ := slices.BinarySearchFunc(filed.shelves, entry, byName)
	filed.shelves = slices.Insert(filed.shelves, at, entry)
	filed.endpoints += len(entry.slice.Endpoints)
	entry.group = filed
	family.note(filed)
}

// unfile takes a shelf with so many endpoints out of its group.
func (p *Placement) unfile(entry *shelf, endpoints int) {
	family, filed := &p.families[entry.family], entry.group
	at, _ := slices.BinarySearchFunc(filed.shelves, entry, byName)
	filed.shelves = slices.Delete(filed.shelves, at, at+1)
	filed.endpoints -= endpoints
	entry.group = nil
	family.note(filed)
	if len(filed.shelves) == 0 {
		delete(family.groups, filed.key)
		delete(family.empty, filed)
	}
}

// note keeps account of which groups are without an endpoint.
func (f *family) note(of *group) {
	if of.endpoints == 0 {
		f.empty[of] = struct{}{}
		return
	}
	delete(f.empty, of)
}

// locate notes which pods a shelf holds. Endpoints that were not touched are the
// very same objects in both versions of its slice, and are passed by.
func (p *Placement) locate(entry *shelf, before, after *discoveryv1.EndpointSlice) (ok bool) {
	first := 0
	if before != nil {
		for first < min(len(before.Endpoints), len(after.Endpoints)) && sameTarget(&before.Endpoints[first], &after.Endpoints[first]) {
			first++
		}
		p.forget(entry, before.Endpoints[first:])
	}
	for i := first; i < len(after.Endpoints); i++ {
		target := after.Endpoints[i].TargetRef
		if target == nil || target.Name == "" {
			return false
		}
		at := p.pods[target.Name]
		at[entry.family] = entry
		p.pods[target.Name] = at
	}
	return true
}

// forget drops what is known of endpoints that a shelf held, as far as they were
// not found elsewhere since.
func (p *Placement) forget(entry *shelf, endpoints []discoveryv1.Endpoint) {
	for i := range endpoints {
		name := endpoints[i].TargetRef.Name
		at, known := p.pods[name]
		if !known || at[entry.family] != entry {
			continue
		}
		at[entry.family] = nil
		if at == (spots{}) {
			delete(p.pods, name)
			continue
		}
		p.pods[name] = at
	}
}

func sameTarget(a, b *discoveryv1.Endpoint) bool {
	return a.TargetRef == b.TargetRef || (a.TargetRef != nil && b.TargetRef != nil && a.TargetRef.Name == b.TargetRef.Name)
}

// sameArray reports whether two lists of ports are one in memory, which spares
// the making of their key.
func sameArray(a, b []discoveryv1.EndpointPort) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func numberOf(addressType discoveryv1.AddressType) (int, bool) {
	switch addressType {
	case discoveryv1.AddressTypeIPv4:
		return 0, true
	case discoveryv1.AddressTypeIPv6:
		return 1, true
	default:
		return 0, false
	}
}

func byName(a, b *shelf) int { return cmp.Compare(a.slice.Name, b.slice.Name) }
