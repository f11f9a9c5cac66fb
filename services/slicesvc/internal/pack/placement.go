package pack

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// Placement tells in which slices the endpoints of one Service lie. With it, a plan for a change of
// some Pods looks only at the slices that hold these Pods, and at the free capacity of the other
// slices when a new endpoint does not fit there. The plan is the one that Make returns for the
// whole.
//
// That holds as long as the Placement is up to date: it was made from slices for which Make has
// nothing to do; every plan since was applied completely and recorded with Put and Delete; and
// every Pod that changed was in one of these plans. After any other event the caller drops the
// Placement and plans the whole: the Service changed, another writer changed a slice, or a write
// failed. Two kinds of Services are always planned as a whole: those with hints in mode Auto, where
// one Pod may change the hints of all, and those that are being deleted.
//
// A Placement is not safe for concurrent use. Slices are kept as given and never changed.
type Placement struct {
	families [familyCount]placedFamily
	// slices has every slice by its name.
	slices map[string]*placedSlice
	// pods has every Pod with an endpoint in a slice or an affinity, by name.
	pods map[string]placedPod
}

// familyCount is for IPv4 and IPv6. A slice of another address type cannot be placed.
const familyCount = 2

// placedPod is one Pod of the Service.
type placedPod struct {
	// slices hold the Pod's endpoints, at most one for each family.
	slices [familyCount]*placedSlice
	// affinity is that of the snapshot in which the Pod was last planned.
	affinity uint32
}

// placedFamily has the slices of one address family.
type placedFamily struct {
	groups map[desired.PortKey]*placedGroup
	// empty has the groups without an endpoint: at most one, that of the placeholder.
	empty map[*placedGroup]struct{}
	// slices counts the slices of all groups.
	slices int
}

// placedGroup has the slices of one set of ports.
type placedGroup struct {
	key       desired.PortKey
	ports     []discoveryv1.EndpointPort
	endpoints int
	// slices are in order of name.
	slices []*placedSlice
}

type placedSlice struct {
	object *discoveryv1.EndpointSlice
	family int
	group  *placedGroup
}

// NewPlacement returns the Placement of a Service for which Make has nothing to do. Slices that are
// being deleted are ignored. ok is false when no plan leaves such slices.
func NewPlacement(snapshot index.Snapshot) (p *Placement, ok bool) {
	endpoints := 0
	for _, slice := range snapshot.Slices {
		endpoints += len(slice.Endpoints)
	}
	p = &Placement{
		slices: make(map[string]*placedSlice, len(snapshot.Slices)),
		pods:   make(map[string]placedPod, endpoints),
	}
	for i := range p.families {
		p.families[i] = placedFamily{groups: map[desired.PortKey]*placedGroup{}, empty: map[*placedGroup]struct{}{}}
	}
	for pod, affinity := range snapshot.Affinities() {
		p.pods[pod] = placedPod{affinity: affinity}
	}
	for _, slice := range snapshot.Slices {
		if slice.DeletionTimestamp == nil && !p.Put(slice) {
			return nil, false
		}
	}
	return p, true
}

// Slack reports whether the endpoints may fit into fewer slices with the given limit.
func (p *Placement) Slack(limit int) bool {
	for i := range p.families {
		for _, group := range p.families[i].groups {
			if len(group.slices) > max((group.endpoints+limit-1)/limit, 1) {
				return true
			}
		}
	}
	return false
}

// Put records the slice that a write left. ok is false when the slice cannot be placed; then the
// Placement must not be used any more.
func (p *Placement) Put(slice *discoveryv1.EndpointSlice) (ok bool) {
	family, ok := familyNumber(slice.AddressType)
	if !ok {
		return false
	}
	entry := p.slices[slice.Name]
	if entry == nil {
		entry = &placedSlice{family: family}
		p.slices[slice.Name] = entry
		p.families[family].slices++
	}
	if entry.family != family {
		return false
	}
	before := entry.object
	entry.object = slice
	p.file(entry, before)
	return p.locate(entry, before, slice)
}

// Delete records that a slice was deleted.
func (p *Placement) Delete(name string) {
	entry := p.slices[name]
	if entry == nil {
		return
	}
	p.forget(entry, entry.object.Endpoints)
	p.unfile(entry, len(entry.object.Endpoints))
	p.families[entry.family].slices--
	delete(p.slices, name)
}

// file puts a slice, whose previous version is before, into its group.
func (p *Placement) file(entry *placedSlice, before *discoveryv1.EndpointSlice) {
	family := &p.families[entry.family]
	if before != nil {
		if sameMemory(before.Ports, entry.object.Ports) {
			entry.group.endpoints += len(entry.object.Endpoints) - len(before.Endpoints)
			family.noteEmpty(entry.group)
			return
		}
		p.unfile(entry, len(before.Endpoints))
	}
	key := desired.KeyOf(entry.object.Ports)
	group := family.groups[key]
	if group == nil {
		group = &placedGroup{key: key, ports: entry.object.Ports}
		family.groups[key] = group
	}
	at, _ := slices.BinarySearchFunc(group.slices, entry, byName)
	group.slices = slices.Insert(group.slices, at, entry)
	group.endpoints += len(entry.object.Endpoints)
	entry.group = group
	family.noteEmpty(group)
}

// unfile takes a slice, which counted for so many endpoints, out of its group.
func (p *Placement) unfile(entry *placedSlice, endpoints int) {
	family, group := &p.families[entry.family], entry.group
	at, _ := slices.BinarySearchFunc(group.slices, entry, byName)
	group.slices = slices.Delete(group.slices, at, at+1)
	group.endpoints -= endpoints
	entry.group = nil
	family.noteEmpty(group)
	if len(group.slices) == 0 {
		delete(family.groups, group.key)
		delete(family.empty, group)
	}
}

func (f *placedFamily) noteEmpty(group *placedGroup) {
	if group.endpoints == 0 {
		f.empty[group] = struct{}{}
		return
	}
	delete(f.empty, group)
}

// locate records which Pods a slice holds. It skips the common prefix of both versions.
func (p *Placement) locate(entry *placedSlice, before, after *discoveryv1.EndpointSlice) (ok bool) {
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
		pod := p.pods[target.Name]
		pod.slices[entry.family] = entry
		p.pods[target.Name] = pod
	}
	return true
}

// forget drops the endpoints that a slice held, except those that another slice holds by now.
func (p *Placement) forget(entry *placedSlice, endpoints []discoveryv1.Endpoint) {
	for i := range endpoints {
		name := endpoints[i].TargetRef.Name
		pod := p.pods[name]
		if pod.slices[entry.family] == entry {
			pod.slices[entry.family] = nil
			p.setPod(name, pod)
		}
	}
}

func (p *Placement) setPod(name string, pod placedPod) {
	if pod == (placedPod{}) {
		delete(p.pods, name)
		return
	}
	p.pods[name] = pod
}

func sameTarget(a, b *discoveryv1.Endpoint) bool {
	return a.TargetRef == b.TargetRef || (a.TargetRef != nil && b.TargetRef != nil && a.TargetRef.Name == b.TargetRef.Name)
}

// sameMemory reports whether two lists of ports are the same array, which saves making their keys.
func sameMemory(a, b []discoveryv1.EndpointPort) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func familyNumber(addressType discoveryv1.AddressType) (int, bool) {
	switch addressType {
	case discoveryv1.AddressTypeIPv4:
		return 0, true
	case discoveryv1.AddressTypeIPv6:
		return 1, true
	default:
		return 0, false
	}
}

func byName(a, b *placedSlice) int { return cmp.Compare(a.object.Name, b.object.Name) }
