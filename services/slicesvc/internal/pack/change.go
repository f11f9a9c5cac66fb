package pack

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Plan plans the slices after a change of the named Pods. in has a snapshot of these Pods, as
// index.SnapshotOfPods returns it, and the endpoints that these Pods should have. A plan must be
// applied before the Placement makes the next one.
func (p *Placement) Plan(in Input, pods map[string]struct{}) Plan {
	s := &scope{
		placement: p,
		changed:   pods,
		held:      make(map[*placedSlice]int, len(pods)),
		included:  map[*placedSlice]struct{}{},
	}
	s.find(in.Affinities())
	var families []desired.Family
	for i := range in.Endpoints.Families {
		if family, touched := s.include(in.Endpoints.Families[i]); touched {
			families = append(families, family)
		}
	}
	if len(families) == 0 {
		return Plan{}
	}
	in.Endpoints.Families = families
	in.Slices = s.slices()
	return newPlanner(in, s).plan()
}

// scope restricts a plan to what a change of some Pods touches. The planner gets the families that
// change, in them the endpoints of the changed Pods, and the included slices: all that have an
// endpoint of a changed Pod, and all of a group that loses its last endpoint. A group that keeps
// endpoints of other Pods is in the family even without endpoints of changed Pods. A nil scope is
// that of a plan of the whole Service.
type scope struct {
	placement *Placement
	// changed names the Pods whose endpoints may have come, gone or changed.
	changed map[string]struct{}
	// held counts the endpoints of changed Pods by their slice.
	held map[*placedSlice]int
	// included are the slices that the planner gets.
	included map[*placedSlice]struct{}
}

// find finds the slices of the changed Pods and records the Pods' affinities.
func (s *scope) find(affinities map[string]uint32) {
	for name := range s.changed {
		pod := s.placement.pods[name]
		for _, slice := range pod.slices {
			if slice != nil {
				s.held[slice]++
			}
		}
		if affinity := affinities[name]; pod.affinity != affinity {
			pod.affinity = affinity
			s.placement.setPod(name, pod)
		}
	}
}

// include includes the slices of a family that the plan looks at, and adds the groups that keep
// endpoints of other Pods; false when the change does not touch the family.
func (s *scope) include(family desired.Family) (desired.Family, bool) {
	number, ok := familyNumber(family.AddressType)
	if !ok {
		return family, false
	}
	leaving := map[*placedGroup]int{}
	for slice, count := range s.held {
		if slice.family == number {
			s.included[slice] = struct{}{}
			leaving[slice.group] += count
		}
	}
	if len(leaving) == 0 && len(family.Groups) == 0 {
		return family, false
	}
	wanted := family.Groups
	family.Groups = slices.Clone(wanted)
	for group, count := range leaving {
		switch {
		case hasGroup(wanted, group.key):
		case group.endpoints > count:
			family.Groups = append(family.Groups, desired.Group{Key: group.key, Ports: group.ports})
		default:
			s.includeAll(group)
		}
	}
	for group := range s.placement.families[number].empty {
		if !hasGroup(wanted, group.key) {
			s.includeAll(group)
		}
	}
	slices.SortFunc(family.Groups, func(a, b desired.Group) int { return cmp.Compare(a.Key, b.Key) })
	return family, true
}

func (s *scope) includeAll(group *placedGroup) {
	for _, slice := range group.slices {
		s.included[slice] = struct{}{}
	}
}

func (s *scope) slices() []*discoveryv1.EndpointSlice {
	objects := make([]*discoveryv1.EndpointSlice, 0, len(s.included))
	for slice := range s.included {
		objects = append(objects, slice.object)
	}
	return objects
}

func hasGroup(groups []desired.Group, key desired.PortKey) bool {
	return slices.ContainsFunc(groups, func(g desired.Group) bool { return g.Key == key })
}

// keeps reports whether an endpoint in a slice is of a Pod that did not change. s may be nil.
func (s *scope) keeps(found *discoveryv1.Endpoint) bool {
	if s == nil || found.TargetRef == nil {
		return false
	}
	_, changed := s.changed[found.TargetRef.Name]
	return !changed
}

// hasOthers reports whether a family has slices beside the included ones. s may be nil.
func (s *scope) hasOthers(addressType discoveryv1.AddressType) bool {
	if s == nil {
		return false
	}
	number, ok := familyNumber(addressType)
	if !ok {
		return false
	}
	included := 0
	for slice := range s.included {
		if slice.family == number {
			included++
		}
	}
	return s.placement.families[number].slices > included
}

// others returns unchanged drafts of the slices of a group beside the included ones, in order of
// name. s may be nil.
func (s *scope) others(addressType discoveryv1.AddressType, ports desired.PortKey) []*draft {
	if s == nil {
		return nil
	}
	number, ok := familyNumber(addressType)
	if !ok || s.placement.families[number].groups[ports] == nil {
		return nil
	}
	var others []*draft
	for _, slice := range s.placement.families[number].groups[ports].slices {
		if _, included := s.included[slice]; !included {
			others = append(others, unchangedDraft(slice.object))
		}
	}
	return others
}
