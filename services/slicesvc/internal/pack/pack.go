package pack

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Make plans all slices of a Service.
func Make(in Input) Plan { return newPlanner(in, nil).plan() }

// Clear plans to delete the slices that a Service owns. It is for Services that lost their selector
// or became ExternalName, whose slices upstream leaves behind.
func Clear(in Input) Plan {
	p := newPlanner(in, nil)
	var all drafts
	for _, slice := range sorted(in.Slices) {
		if p.Owner.owns(slice) {
			all.drop(slice, SelectorGone)
		}
	}
	return p.render(all)
}

func (p *planner) plan() Plan {
	existing := sorted(p.Slices)
	families, topology := p.hinted(existing)
	var all drafts
	for _, family := range families {
		all.append(p.planFamily(family, ofType(existing, family.AddressType)))
	}
	for _, slice := range existing {
		if !served(families, slice.AddressType) {
			all.drop(slice, FamilyGone)
		}
	}
	if p.ending() {
		// The garbage collector deletes the slices of the Service; a new slice would race with it.
		all.create = nil
	}
	plan := p.render(all)
	plan.Topology = topology
	return plan
}

// planFamily plans one address family. existing is sorted. A slice of a set of ports that is gone
// gets the ports that its endpoints have now, so that they stay in their slice.
func (p *planner) planFamily(family desired.Family, existing []*discoveryv1.EndpointSlice) drafts {
	var result drafts
	byPorts := map[desired.PortKey][]*discoveryv1.EndpointSlice{}
	var withoutGroup []*discoveryv1.EndpointSlice
	newPorts := successor{family: family}
	p.succeeding = map[*discoveryv1.EndpointSlice]struct{}{}
	for _, slice := range existing {
		if !p.Owner.canUse(slice) {
			if !p.ending() { // the deletion of a Service with --cascade=orphan leaves its slices without an owner
				result.drop(slice, NotOwned)
			}
			continue
		}
		key := desired.KeyOf(slice.Ports)
		if !hasGroup(family.Groups, key) {
			var stays bool
			if key, stays = newPorts.of(slice); !stays || p.Owner.Mirror != nil || p.WithoutRecycling {
				withoutGroup = append(withoutGroup, slice)
				continue
			}
			p.succeeding[slice] = struct{}{}
		}
		byPorts[key] = append(byPorts[key], slice)
	}
	for i := range family.Groups {
		group := &family.Groups[i]
		result.append(p.planGroup(family.AddressType, group, byPorts[group.Key]))
	}
	for _, slice := range withoutGroup {
		result.drop(slice, PortsGone)
	}
	if p.Owner.Mirror == nil && len(result.create) == 0 && len(result.delete) == len(existing) && !p.scope.hasOthers(family.AddressType) {
		p.addPlaceholder(&result, family.AddressType)
	}
	if !p.WithoutRecycling {
		p.recycle(&result)
	}
	if p.Owner.Mirror == nil {
		result.markMoved(family)
	}
	p.markTakers(&result, family.AddressType, existing)
	return result
}

// successor finds the set of ports that most endpoints of a slice have now.
type successor struct {
	family desired.Family
	// ports has the set of ports of each endpoint. It is made for the first slice.
	ports map[desired.Identity]desired.PortKey
}

// of returns the new set of ports of a slice whose own set no endpoint has any more. It returns
// false if no endpoint of the slice is wanted.
func (s *successor) of(slice *discoveryv1.EndpointSlice) (desired.PortKey, bool) {
	if s.ports == nil {
		s.ports = map[desired.Identity]desired.PortKey{}
		for i := range s.family.Groups {
			for _, endpoint := range s.family.Groups[i].Endpoints {
				s.ports[endpoint.Identity] = s.family.Groups[i].Key
			}
		}
	}
	var most desired.PortKey
	count := map[desired.PortKey]int{}
	for i := range slice.Endpoints {
		endpoint, _ := desired.FromObject(&slice.Endpoints[i])
		if key, wanted := s.ports[endpoint.Identity]; wanted {
			if count[key]++; count[key] > count[most] {
				most = key
			}
		}
	}
	return most, len(count) > 0
}

// planGroup plans the slices of one set of ports. existing is sorted.
func (p *planner) planGroup(addressType discoveryv1.AddressType, group *desired.Group, existing []*discoveryv1.EndpointSlice) drafts {
	unplaced := newPool(group.Endpoints)
	existing, surplus := p.splitSurplus(existing, unplaced)
	result, unchanged := p.compare(existing, group, unplaced)
	result.dropSurplus(surplus, unplaced)
	if rest := unplaced.rest(); len(rest) > 0 {
		placer := placer{
			planner:     p,
			addressType: addressType,
			group:       group,
			written:     result.update,
			unchanged:   unchanged,
		}
		place := placer.place
		if p.Owner.Mirror != nil {
			place = placer.fill
		}
		created, opened := place(rest)
		result.create = created
		result.update = append(result.update, opened...)
	}
	if p.Owner.Mirror != nil {
		result.dropEmptied()
	}
	return result
}

// compare takes from the wanted endpoints those that a slice holds already. written are the slices
// whose content or metadata must change, unchanged the remaining ones. An endpoint in two slices
// stays in the one that took it, so that the other one can be deleted.
func (p *planner) compare(existing []*discoveryv1.EndpointSlice, group *desired.Group, wanted *pool) (written drafts, unchanged []*draft) {
	took := slices.ContainsFunc(existing, TookEndpointsLately)
	if took {
		existing = takersFirst(existing)
	}
	for _, slice := range existing {
		draft := p.keep(slice, wanted)
		if _, ok := p.succeeding[slice]; ok {
			draft.ports, draft.reason = group.Ports, Recycled
		}
		switch {
		case draft.touched() && len(draft.endpoints) == 0 && p.Owner.Mirror == nil:
			written.drop(slice, Emptied)
		case draft.touched(), draft.reason == Recycled:
			written.update = append(written.update, draft)
		default:
			if reason := p.metadataChange(slice); reason != "" {
				draft.reason = reason
				written.update = append(written.update, draft)
				continue
			}
			unchanged = append(unchanged, draft)
		}
	}
	if took {
		slices.SortFunc(written.update, byExisting)
		slices.SortFunc(unchanged, byExisting)
	}
	return written, unchanged
}

// addPlaceholder keeps one empty slice without ports for a family that would have no slice. If a
// slice that would be deleted is one, it stays.
func (p *planner) addPlaceholder(to *drafts, addressType discoveryv1.AddressType) {
	for i, dropped := range to.delete {
		if p.isPlaceholder(dropped.from) {
			to.delete = slices.Delete(to.delete, i, i+1)
			return
		}
	}
	to.create = append(to.create, &draft{
		addressType: addressType,
		ports:       []discoveryv1.EndpointPort{},
		reason:      Placeholder,
	})
}

// recycle turns creations into updates of slices that would be deleted: one write instead of two,
// and no new object. It leaves slices of an earlier Service, which the garbage collector deletes,
// and slices whose endpoints move, because the endpoints must arrive first.
func (p *planner) recycle(d *drafts) {
	var remaining []*draft
	for _, dropped := range d.delete {
		if len(d.create) == 0 || !p.Owner.canUse(dropped.from) || (dropped.reason == Compacted && !dropped.duplicate) {
			remaining = append(remaining, dropped)
			continue
		}
		reused := d.create[0]
		d.create = d.create[1:]
		reused.from, reused.reason = dropped.from, Recycled
		reused.removed, reused.gone = dropped.removed, dropped.gone
		d.update = append(d.update, reused)
	}
	d.delete = remaining
}

// render turns drafts into changes, in the order in which they are written.
func (p *planner) render(d drafts) Plan {
	names := namer{planner: p}
	changes := make([]Change, 0, len(d.create)+len(d.update)+len(d.delete))
	for _, draft := range d.create {
		changes = append(changes, draft.change(planned.Create, p.newSlice(draft, &names)))
	}
	slices.SortStableFunc(d.update, byExisting)
	for _, draft := range d.update {
		changes = append(changes, draft.change(planned.Update, p.nextVersion(draft)))
	}
	slices.SortStableFunc(d.delete, byExisting)
	for _, draft := range d.delete {
		changes = append(changes, draft.change(planned.Delete, draft.from))
	}
	return Plan{Changes: changes}
}

// sorted returns the slices in order of name, without those that are being deleted.
func sorted(existing []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	kept := make([]*discoveryv1.EndpointSlice, 0, len(existing))
	for _, slice := range existing {
		if slice.DeletionTimestamp == nil {
			kept = append(kept, slice)
		}
	}
	slices.SortFunc(kept, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	return kept
}

func ofType(among []*discoveryv1.EndpointSlice, addressType discoveryv1.AddressType) []*discoveryv1.EndpointSlice {
	var matching []*discoveryv1.EndpointSlice
	for _, slice := range among {
		if slice.AddressType == addressType {
			matching = append(matching, slice)
		}
	}
	return matching
}

func served(families []desired.Family, addressType discoveryv1.AddressType) bool {
	return slices.ContainsFunc(families, func(f desired.Family) bool { return f.AddressType == addressType })
}
