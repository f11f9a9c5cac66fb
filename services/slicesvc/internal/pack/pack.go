package pack

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Make plans the slices of one Service.
func Make(in Input) Plan {
	in.Limit = max(in.Limit, 1)
	existing := sorted(in.Slices)
	naming := newNaming(in)
	labels := newLabeling(in.Service, in.ManagedBy)
	var topology []FamilyHints
	in.Endpoints, topology = hinted(in, existing)

	var all drafts
	for _, family := range in.Endpoints.Families {
		all.append(packFamily(in, labels, family, ofType(existing, family.AddressType)))
	}
	for _, slice := range existing {
		if !served(in.Endpoints.Families, slice.AddressType) {
			all.drop(slice, FamilyGone)
		}
	}
	if in.ending() {
		// The garbage collector deletes the slices of a Service that goes away; a new one would race it.
		all.create = nil
	}
	plan := all.plan(in, naming)
	plan.Topology = topology
	return plan
}

// packFamily plans one address family. existing is sorted.
func packFamily(in Input, labels labeling, family desired.Family, existing []*discoveryv1.EndpointSlice) drafts {
	var result drafts
	byPorts := map[desired.PortKey][]*discoveryv1.EndpointSlice{}
	for _, slice := range existing {
		if !owned(slice, in.Service) {
			result.drop(slice, NotOwned)
			continue
		}
		key := desired.KeyOf(slice.Ports)
		byPorts[key] = append(byPorts[key], slice)
	}
	for i := range family.Groups {
		group := packGroup(in, labels, family.AddressType, &family.Groups[i], byPorts[family.Groups[i].Key])
		result.append(group)
		delete(byPorts, family.Groups[i].Key)
	}
	for _, slice := range existing {
		if _, left := byPorts[desired.KeyOf(slice.Ports)]; left && owned(slice, in.Service) {
			result.drop(slice, PortsGone)
		}
	}
	if len(result.create) == 0 && len(result.delete) == len(existing) && !in.Part.any(family.AddressType) {
		result.placeholder(labels, family.AddressType)
	}
	result.recycle(in.Service)
	result.markMoved(family)
	return result
}

// packGroup plans the slices of one set of ports. existing is sorted.
func packGroup(in Input, labels labeling, addressType discoveryv1.AddressType, group *desired.Group, existing []*discoveryv1.EndpointSlice) drafts {
	left := newPool(group.Endpoints)
	result, clean := compare(in, labels, existing, left)
	if rest := left.rest(); len(rest) > 0 {
		into := places{
			limit:    in.Limit,
			affinity: in.affinity,
			create: func() *draft {
				return &draft{addressType: addressType, ports: group.Ports, key: group.Key, reason: NewEndpoints}
			},
			written: result.update,
			clean:   func() []*draft { return merged(clean, in.Part.others(addressType, group.Key)) },
		}
		created, opened := into.place(rest)
		result.create = created
		result.update = append(result.update, opened...)
	}
	staying, going := join(result.update, in.Limit)
	// What was to be found twice, as after a plan that was cut short, may leave a slice
	// in one place and come into it in another.
	result.update = slices.DeleteFunc(staying, func(d *draft) bool { return !labels.differ(d.from) && d.unchanged() })
	result.delete = append(result.delete, going...)
	return result
}

// compare finds which slices are written for what is in them, and takes from the
// wanted endpoints those that have a place. clean are the slices that are as they
// should be.
func compare(in Input, labels labeling, existing []*discoveryv1.EndpointSlice, wanted *pool) (written drafts, clean []*draft) {
	for _, slice := range existing {
		draft := keep(slice, wanted, in)
		switch {
		case draft.touched() && len(draft.endpoints) == 0:
			written.drop(slice, Emptied)
		case draft.touched():
			written.update = append(written.update, draft)
		case labels.differ(slice):
			draft.reason = LabelsChanged
			written.update = append(written.update, draft)
		default:
			clean = append(clean, draft)
		}
	}
	return written, clean
}

// merged joins drafts of existing slices in order of their names.
func merged(clean, others []*draft) []*draft {
	if len(others) == 0 {
		return clean
	}
	all := slices.Concat(clean, others)
	slices.SortFunc(all, byExisting)
	return all
}

// sorted gives the slices in order of name, without those being deleted:
// they are as good as gone, and waiting for them would hold up the rest.
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

// owned reports whether the slice belongs to this very Service, not to an
// earlier one of the same name.
func owned(slice *discoveryv1.EndpointSlice, service *corev1.Service) bool {
	for i := range slice.OwnerReferences {
		owner := &slice.OwnerReferences[i]
		if owner.UID == service.UID && owner.Kind == "Service" && owner.APIVersion == "v1" {
			return true
		}
	}
	return false
}
