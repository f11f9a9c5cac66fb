package pack

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Plan plans the slices after a change of the named Pods. in has a snapshot of these Pods, as
// index.SnapshotOfPods returns it, and the endpoints that these Pods should have. At most one plan
// of a Placement may be in the course of being applied.
func (p *Placement) Plan(in Input, pods map[string]struct{}) Plan {
	part := &part{
		placement: p,
		changed:   pods,
		held:      make(map[*placedSlice]int, len(pods)),
		included:  map[*placedSlice]struct{}{},
	}
	part.update(in.Affinities())
	var families []desired.Family
	for i := range in.Endpoints.Families {
		if family, touched := part.include(in.Endpoints.Families[i]); touched {
			families = append(families, family)
		}
	}
	if len(families) == 0 {
		return Plan{}
	}
	in.Endpoints.Families = families
	in.Slices = part.slices()
	return newPlanner(in, part).plan()
}

// update finds the slices of the changed Pods and records the Pods' affinities.
func (p *part) update(affinities map[string]uint32) {
	for name := range p.changed {
		pod := p.placement.pods[name]
		for _, slice := range pod.slices {
			if slice != nil {
				p.held[slice]++
			}
		}
		if affinity := affinities[name]; pod.affinity != affinity {
			pod.affinity = affinity
			p.placement.setPod(name, pod)
		}
	}
}

// include includes the slices of a family that the plan looks at, and adds the groups that keep
// endpoints of other Pods; false when the change does not touch the family.
func (p *part) include(family desired.Family) (desired.Family, bool) {
	number, ok := familyNumber(family.AddressType)
	if !ok {
		return family, false
	}
	leaving := map[*placedGroup]int{}
	for slice, count := range p.held {
		if slice.family == number {
			p.included[slice] = struct{}{}
			leaving[slice.group] += count
		}
	}
	if len(leaving) == 0 && len(family.Groups) == 0 {
		return family, false
	}
	named := family.Groups
	family.Groups = slices.Clone(named)
	for group, count := range leaving {
		switch {
		case isNamed(named, group.key):
		case group.endpoints > count:
			family.Groups = append(family.Groups, desired.Group{Key: group.key, Ports: group.ports})
		default:
			p.includeAll(group)
		}
	}
	for group := range p.placement.families[number].empty {
		if !isNamed(named, group.key) {
			p.includeAll(group)
		}
	}
	slices.SortFunc(family.Groups, func(a, b desired.Group) int { return cmp.Compare(a.Key, b.Key) })
	return family, true
}

func (p *part) includeAll(group *placedGroup) {
	for _, slice := range group.slices {
		p.included[slice] = struct{}{}
	}
}

func (p *part) slices() []*discoveryv1.EndpointSlice {
	objects := make([]*discoveryv1.EndpointSlice, 0, len(p.included))
	for slice := range p.included {
		objects = append(objects, slice.object)
	}
	return objects
}

func isNamed(groups []desired.Group, key desired.PortKey) bool {
	return slices.ContainsFunc(groups, func(g desired.Group) bool { return g.Key == key })
}
