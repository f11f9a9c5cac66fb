package pack

import (
	"cmp"
	"slices"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// places is the choice of slices for the endpoints of a group that have none.
//
// How many slices are written is upstream's choice: those that are written
// anyway are used up before another is touched, whole slices are created for what
// is left, and the remainder goes into one slice that has room for all of it, or
// a new one. Which endpoints go where is ours: those that will go together lie
// together, so that a rollout fills some slices and empties others instead of
// leaving a bit of each revision in every one.
type places struct {
	limit int
	// affinity gives the number that pods have in common which come and go together.
	affinity func(pod string) uint32
	// dirty are the slices that are written anyway, the fullest first; fresh the
	// new ones; open the one slice, if any, that is written for these endpoints alone.
	dirty, fresh []*draft
	open         *draft
}

// kin is endpoints with the same affinity.
type kin struct {
	affinity  uint32
	endpoints []desired.Endpoint
}

// choose fixes the slices that will hold the endpoints. clean is asked for the
// others of the group only when those that are written anyway have too little room.
func (p *places) choose(dirty []*draft, clean func() []*draft, kinds []kin, create func() *draft) {
	p.dirty = slices.Clone(dirty)
	slices.SortStableFunc(p.dirty, func(a, b *draft) int {
		return cmp.Compare(len(b.endpoints), len(a.endpoints))
	})
	without := 0
	for _, kin := range kinds {
		without += len(kin.endpoints)
	}
	for _, draft := range p.dirty {
		without -= p.room(draft)
	}
	if without <= 0 {
		return
	}
	whole := (without - 1) / p.limit
	for range whole {
		p.fresh = append(p.fresh, create())
	}
	if p.open = p.tightest(clean(), without-whole*p.limit, kinds); p.open == nil {
		p.fresh = append(p.fresh, create())
	}
}

// tightest finds the untouched slice for n endpoints, which are not split over
// several: of those with room for all, one of the affinity of most, and of these
// the fullest. It is nil when they fit into none.
func (p *places) tightest(among []*draft, n int, kinds []kin) *draft {
	var best *draft
	most := -1
	for _, candidate := range among {
		if p.room(candidate) < n {
			continue
		}
		related := sizeOf(kinds, p.of(candidate))
		if related > most || related == most && len(candidate.endpoints) > len(best.endpoints) {
			best, most = candidate, related
		}
	}
	return best
}

// fill puts the endpoints into the slices chosen, each kind first beside its
// own, then into slices that nobody is in yet, and what is left wherever there
// is room. It needs all slices chosen, whatever the kinds: with one less there
// would be too little room.
func (p *places) fill(kinds []kin) {
	affinities := make(map[*draft]uint32, len(p.dirty)+1)
	for _, draft := range p.dirty {
		affinities[draft] = p.of(draft)
	}
	for i := range kinds {
		for _, draft := range p.dirty {
			if affinities[draft] == kinds[i].affinity {
				p.put(&kinds[i], draft)
			}
		}
	}
	for i := range kinds {
		for _, draft := range p.fresh {
			if len(draft.endpoints) == 0 {
				p.put(&kinds[i], draft)
			}
		}
	}
	for i := range kinds {
		if p.open != nil && p.of(p.open) == kinds[i].affinity {
			p.put(&kinds[i], p.open)
		}
	}
	for i := range kinds {
		for _, draft := range p.all() {
			p.put(&kinds[i], draft)
		}
	}
}

func (p *places) put(from *kin, into *draft) {
	from.endpoints = into.take(from.endpoints, p.limit)
}

func (p *places) all() []*draft {
	all := slices.Concat(p.dirty, p.fresh)
	if p.open != nil {
		all = append(all, p.open)
	}
	return all
}

func (p *places) room(draft *draft) int { return max(p.limit-len(draft.endpoints), 0) }

// of gives the affinity of a slice: that of the endpoint in the middle, because
// endpoints stand in the order in which they came, and of two revisions the
// middle belongs to the one with more.
func (p *places) of(draft *draft) uint32 {
	if len(draft.endpoints) == 0 {
		return 0
	}
	target := draft.endpoints[len(draft.endpoints)/2].TargetRef
	if target == nil {
		return 0
	}
	return p.affinity(target.Name)
}

// byAffinity divides endpoints, keeping their order, the largest part first.
func byAffinity(endpoints []desired.Endpoint, affinity func(pod string) uint32) []kin {
	places := map[uint32]int{}
	var kinds []kin
	for i := range endpoints {
		of := affinity(endpoints[i].PodName)
		at, ok := places[of]
		if !ok {
			at = len(kinds)
			places[of] = at
			kinds = append(kinds, kin{affinity: of})
		}
		kinds[at].endpoints = append(kinds[at].endpoints, endpoints[i])
	}
	slices.SortFunc(kinds, func(a, b kin) int {
		return cmp.Or(cmp.Compare(len(b.endpoints), len(a.endpoints)), cmp.Compare(a.affinity, b.affinity))
	})
	return kinds
}

func sizeOf(kinds []kin, affinity uint32) int {
	for i := range kinds {
		if kinds[i].affinity == affinity {
			return len(kinds[i].endpoints)
		}
	}
	return 0
}
