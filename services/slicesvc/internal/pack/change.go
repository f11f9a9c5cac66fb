package pack

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Plan plans the slices after changes of some pods. in is what Make would be
// given for the whole, except that Endpoints has those of pods only, as
// desired.Resolve gives them, and that Slices is ignored.
func (p *Placement) Plan(in Input, pods map[string]struct{}) Plan {
	touched := &touched{
		placement: p,
		held:      p.holding(pods),
		taken:     map[*shelf]struct{}{},
	}
	var changed []desired.Family
	for i := range in.Endpoints.Families {
		if narrowed, ok := touched.family(in.Endpoints.Families[i]); ok {
			changed = append(changed, narrowed)
		}
	}
	if len(changed) == 0 {
		return Plan{}
	}
	in.Endpoints.Families = changed
	in.Slices = touched.slices()
	in.Part = &Part{Pods: pods, Others: touched}
	return Make(in)
}

// holding counts, by shelf, the endpoints that pods have so far.
func (p *Placement) holding(pods map[string]struct{}) map[*shelf]int {
	held := make(map[*shelf]int, len(pods))
	for name := range pods {
		for _, at := range p.pods[name] {
			if at != nil {
				held[at]++
			}
		}
	}
	return held
}

// touched is what of a Placement a plan has to look at.
type touched struct {
	placement *Placement
	// held counts the endpoints of changed pods by the shelf they are in.
	held map[*shelf]int
	// taken are the shelves to be looked at.
	taken map[*shelf]struct{}
}

// family takes the shelves to be looked at and names the groups that will have
// endpoints; false when nothing of the family is concerned.
func (p *touched) family(of desired.Family) (desired.Family, bool) {
	number, ok := numberOf(of.AddressType)
	if !ok {
		return of, false
	}
	leaving := map[*group]int{}
	for at, count := range p.held {
		if at.family == number {
			p.taken[at] = struct{}{}
			leaving[at.group] += count
		}
	}
	if len(leaving) == 0 && len(of.Groups) == 0 {
		return of, false
	}
	own := &p.placement.families[number]
	narrowed := desired.Family{AddressType: of.AddressType, Groups: slices.Clone(of.Groups)}
	for touched, count := range leaving {
		switch {
		case named(of.Groups, touched.key):
		case touched.endpoints > count:
			narrowed.Groups = append(narrowed.Groups, desired.Group{Key: touched.key, Ports: touched.ports})
		default:
			p.takeAll(touched)
		}
	}
	for empty := range own.empty {
		if !named(of.Groups, empty.key) {
			p.takeAll(empty)
		}
	}
	slices.SortFunc(narrowed.Groups, func(a, b desired.Group) int { return cmp.Compare(a.Key, b.Key) })
	return narrowed, true
}

func (p *touched) takeAll(of *group) {
	for _, shelf := range of.shelves {
		p.taken[shelf] = struct{}{}
	}
}

func (p *touched) slices() []*discoveryv1.EndpointSlice {
	taken := make([]*discoveryv1.EndpointSlice, 0, len(p.taken))
	for shelf := range p.taken {
		taken = append(taken, shelf.slice)
	}
	return taken
}

// Any implements Others.
func (p *touched) Any(addressType discoveryv1.AddressType) bool {
	number, ok := numberOf(addressType)
	if !ok {
		return false
	}
	taken := 0
	for shelf := range p.taken {
		if shelf.family == number {
			taken++
		}
	}
	return p.placement.families[number].slices > taken
}

// In implements Others.
func (p *touched) In(addressType discoveryv1.AddressType, ports desired.PortKey) []*discoveryv1.EndpointSlice {
	number, ok := numberOf(addressType)
	if !ok || p.placement.families[number].groups[ports] == nil {
		return nil
	}
	var others []*discoveryv1.EndpointSlice
	for _, shelf := range p.placement.families[number].groups[ports].shelves {
		if _, taken := p.taken[shelf]; !taken {
			others = append(others, shelf.slice)
		}
	}
	return others
}

func named(groups []desired.Group, key desired.PortKey) bool {
	return slices.ContainsFunc(groups, func(g desired.Group) bool { return g.Key == key })
}
