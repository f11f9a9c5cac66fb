package pack

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// placer chooses the slices for the endpoints of a group that are in no slice.
//
// The number of slices that are written follows upstream: slices that are written anyway are filled
// before another one is touched, full slices are created for what is left, and the remainder goes
// into the one slice that it fits most tightly, or into a new one.
//
// The choice among these slices decides how many slices later plans write, because endpoints that
// came together change together: soon they become ready, and later they go together. So they go
// into as few slices as can take them. Upstream fills the fullest slice first and so spreads them
// over many small gaps. Among the endpoints that came together, those of one affinity stay
// together, and affinity decides between equal slices. It decides nothing more: slices for each
// revision of a rollout cost a small Service nearly twice the writes, because each step then
// touches the slices of both revisions (measured with rollout_test.go).
type placer struct {
	*planner
	addressType discoveryv1.AddressType
	group       *desired.Group
	// written are the slices that are written anyway, ordered by name.
	written []*draft
	// unchanged are the other slices of the group that were compared, ordered by name.
	unchanged []*draft
}

// place puts the endpoints into slices. It returns the slices that it created, and the slice that
// is written for these endpoints alone, if there is one.
func (p *placer) place(endpoints []desired.Endpoint) (created, opened []*draft) {
	rest := p.byAffinity(endpoints)
	if p.freeIn(p.written) >= len(rest) {
		for len(rest) > 0 {
			rest = p.tightestOrWidest(p.written, rest).take(rest, p.Limit)
		}
		return nil, nil
	}
	for _, draft := range p.fullestFirst() {
		rest = draft.take(rest, p.Limit)
	}
	for len(rest) > 0 {
		if len(rest) < p.Limit {
			if best := p.tightest(p.allUnchanged(), rest); best != nil {
				best.take(rest, p.Limit)
				return created, []*draft{best}
			}
		}
		next := &draft{addressType: p.addressType, ports: p.group.Ports, key: p.group.Key, reason: NewEndpoints}
		rest = next.take(rest, p.Limit)
		created = append(created, next)
	}
	return created, nil
}

// allUnchanged returns all slices of the group that are not written, ordered by name.
func (p *placer) allUnchanged() []*draft {
	others := p.scope.others(p.addressType, p.group.Key)
	if len(others) == 0 {
		return p.unchanged
	}
	all := slices.Concat(p.unchanged, others)
	slices.SortFunc(all, byExisting)
	return all
}

// byAffinity orders the endpoints by the size of their affinity, the largest first. Endpoints of
// one affinity keep their order.
func (p *placer) byAffinity(endpoints []desired.Endpoint) []desired.Endpoint {
	if len(endpoints) == 1 {
		return endpoints
	}
	affinities := make(map[string]uint32, len(endpoints))
	count := map[uint32]int{}
	for i := range endpoints {
		affinity := p.affinity(endpoints[i].PodName)
		affinities[endpoints[i].PodName] = affinity
		count[affinity]++
	}
	if len(count) == 1 {
		return endpoints
	}
	ordered := slices.Clone(endpoints)
	slices.SortStableFunc(ordered, func(a, b desired.Endpoint) int {
		left, right := affinities[a.PodName], affinities[b.PodName]
		return cmp.Or(cmp.Compare(count[right], count[left]), cmp.Compare(left, right))
	})
	return ordered
}

// tightestOrWidest returns the slice that the endpoints fit most tightly or, if they fit into none,
// the slice with the most free capacity.
func (p *placer) tightestOrWidest(among []*draft, endpoints []desired.Endpoint) *draft {
	if best := p.tightest(among, endpoints); best != nil {
		return best
	}
	return slices.MaxFunc(among, func(a, b *draft) int { return p.free(a) - p.free(b) })
}

// tightest returns the slice with the least free capacity that can take all the endpoints, and
// among equal ones a slice of their affinity; nil when they fit into none.
func (p *placer) tightest(among []*draft, endpoints []desired.Endpoint) *draft {
	var best *draft
	for _, candidate := range among {
		switch {
		case p.free(candidate) < len(endpoints):
		case best == nil, p.free(candidate) < p.free(best):
			best = candidate
		case p.free(candidate) == p.free(best) && !p.sameAffinity(best, endpoints) && p.sameAffinity(candidate, endpoints):
			best = candidate
		}
	}
	return best
}

func (p *placer) fullestFirst() []*draft {
	byFill := slices.Clone(p.written)
	slices.SortStableFunc(byFill, func(a, b *draft) int { return cmp.Compare(p.free(a), p.free(b)) })
	return byFill
}

// free returns how many endpoints a slice can take.
func (p *placer) free(draft *draft) int { return max(p.Limit-len(draft.endpoints), 0) }

func (p *placer) freeIn(drafts []*draft) int {
	free := 0
	for _, draft := range drafts {
		free += p.free(draft)
	}
	return free
}

// sameAffinity reports whether a slice has the affinity of the first of the endpoints. The affinity
// of a slice is that of its middle endpoint: endpoints stand in the order in which they came, so
// that of two kinds the middle one belongs to the more frequent kind.
func (p *placer) sameAffinity(draft *draft, endpoints []desired.Endpoint) bool {
	if len(draft.endpoints) == 0 {
		return false
	}
	target := draft.endpoints[len(draft.endpoints)/2].TargetRef
	return target != nil && p.affinity(target.Name) == p.affinity(endpoints[0].PodName)
}

// pool has the endpoints that a group should have, and which of them are in a slice.
type pool struct {
	byIdentity map[desired.Identity]int
	endpoints  []desired.Endpoint
	placed     []bool
}

func newPool(endpoints []desired.Endpoint) *pool {
	p := &pool{
		byIdentity: make(map[desired.Identity]int, len(endpoints)),
		endpoints:  endpoints,
		placed:     make([]bool, len(endpoints)),
	}
	for i := range endpoints {
		if _, duplicate := p.byIdentity[endpoints[i].Identity]; duplicate {
			p.placed[i] = true
			continue
		}
		p.byIdentity[endpoints[i].Identity] = i
	}
	return p
}

// take returns the endpoint of that identity, once.
func (p *pool) take(identity desired.Identity) (desired.Endpoint, bool) {
	i, ok := p.byIdentity[identity]
	if !ok || p.placed[i] {
		return desired.Endpoint{}, false
	}
	p.placed[i] = true
	return p.endpoints[i], true
}

// rest returns the endpoints that were not taken, ordered by address, Pod and hostname, so that
// equal inputs make equal slices.
func (p *pool) rest() []desired.Endpoint {
	var rest []desired.Endpoint
	for i := range p.endpoints {
		if !p.placed[i] {
			rest = append(rest, p.endpoints[i])
		}
	}
	slices.SortFunc(rest, func(a, b desired.Endpoint) int {
		return cmp.Or(
			cmp.Compare(a.Addresses, b.Addresses),
			cmp.Compare(a.PodName, b.PodName),
			cmp.Compare(a.Hostname, b.Hostname),
		)
	})
	return rest
}

// keep returns the draft of an existing slice with its wanted endpoints, in their positions. A
// slice above the limit, which was lowered, keeps them, as with upstream.
func (p *planner) keep(slice *discoveryv1.EndpointSlice, wanted *pool) *draft {
	kept := &draft{
		from:        slice,
		addressType: slice.AddressType,
		ports:       slice.Ports,
		reason:      EndpointsChanged,
	}
	// Nearly all endpoints stay where they are: copying all at once and moving some costs a
	// fraction of copying one by one.
	endpoints, n := slices.Clone(slice.Endpoints), 0
	stay := func(i int) {
		if n != i {
			endpoints[n] = slice.Endpoints[i]
		}
		n++
	}
	for i := range slice.Endpoints {
		if p.scope.keeps(&slice.Endpoints[i]) {
			stay(i)
			continue
		}
		found, exact := desired.FromObject(&slice.Endpoints[i])
		want, ok := wanted.take(found.Identity)
		switch {
		case !ok:
			kept.removed++
			kept.gone = append(kept.gone, slice.Endpoints[i])
		case exact && want == found:
			stay(i)
		case want.Mirrored:
			endpoints[n] = want.Object()
			endpoints[n].Hints = slice.Endpoints[i].Hints
			n++
			if !exact || !want.SameMirrored(found) {
				kept.changed++
			}
		default:
			endpoints[n] = want.Object()
			n++
			kept.changed++
		}
	}
	clear(endpoints[n:])
	kept.endpoints = endpoints[:n]
	return kept
}
