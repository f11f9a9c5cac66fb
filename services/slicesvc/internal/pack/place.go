package pack

import (
	"cmp"
	"slices"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// places is the choice of slices for the endpoints of a group that have none.
//
// How many slices are written now is upstream's choice: those that are written
// anyway are used up before another is touched, whole slices are created for what
// is left, and the remainder goes into the one slice that has just room for all
// of it, or a new one.
//
// Which of them take the endpoints decides how many are written next time, for
// endpoints that came together change together: soon they become ready, and one
// day they go. Where there is a choice they therefore go into as few slices as
// can take them, while upstream fills the fullest first and so spreads them over
// many small gaps. Of endpoints that came together those of one affinity stay
// together, and between slices that are equal affinity decides. It does not
// decide more: to keep the revisions of a rollout in slices of their own, measured
// with the rollouts of rollout_test.go, costs a small Service nearly twice the
// writes, because every step then touches the old slices and the new ones.
type places struct {
	limit int
	// affinity gives the number that pods have in common which come and go together.
	affinity func(pod string) uint32
	create   func() *draft
	// written are the slices that are written anyway, ordered by name.
	written []*draft
	// clean gives the others of the group, ordered by name; it is asked only when they are needed.
	clean func() []*draft
}

// place puts the endpoints into slices. It returns the slices it created, and
// the one that is written for these endpoints alone, if there is one.
func (p *places) place(endpoints []desired.Endpoint) (created, opened []*draft) {
	rest := p.together(endpoints)
	if room := p.roomOf(p.written); room >= len(rest) {
		for len(rest) > 0 {
			rest = p.closest(p.written, rest).take(rest, p.limit)
		}
		return nil, nil
	}
	for _, draft := range p.fullestFirst() {
		rest = draft.take(rest, p.limit)
	}
	for len(rest) > 0 {
		if len(rest) < p.limit {
			if fits := p.tightest(p.clean(), rest); fits != nil {
				fits.take(rest, p.limit)
				return created, []*draft{fits}
			}
		}
		next := p.create()
		rest = next.take(rest, p.limit)
		created = append(created, next)
	}
	return created, nil
}

// together orders the endpoints by affinity, the most numerous first, and leaves
// the order of those that have the same.
func (p *places) together(endpoints []desired.Endpoint) []desired.Endpoint {
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
		of, other := affinities[a.PodName], affinities[b.PodName]
		return cmp.Or(cmp.Compare(count[other], count[of]), cmp.Compare(of, other))
	})
	return ordered
}

// closest finds the slice that has just room for the endpoints or, when none has
// room for all of them, the one with most.
func (p *places) closest(among []*draft, endpoints []desired.Endpoint) *draft {
	if best := p.tightest(among, endpoints); best != nil {
		return best
	}
	widest := among[0]
	for _, candidate := range among {
		if p.room(candidate) > p.room(widest) {
			widest = candidate
		}
	}
	return widest
}

// tightest finds the slice that has the least room left after taking all the
// endpoints, one of their affinity before others; nil when they fit into none.
func (p *places) tightest(among []*draft, endpoints []desired.Endpoint) *draft {
	var best *draft
	for _, candidate := range among {
		switch {
		case p.room(candidate) < len(endpoints):
		case best == nil, p.room(candidate) < p.room(best):
			best = candidate
		case p.room(candidate) == p.room(best) && !p.akin(best, endpoints) && p.akin(candidate, endpoints):
			best = candidate
		}
	}
	return best
}

func (p *places) fullestFirst() []*draft {
	byFill := slices.Clone(p.written)
	slices.SortStableFunc(byFill, func(a, b *draft) int { return cmp.Compare(p.room(a), p.room(b)) })
	return byFill
}

func (p *places) room(draft *draft) int { return max(p.limit-len(draft.endpoints), 0) }

func (p *places) roomOf(drafts []*draft) int {
	room := 0
	for _, draft := range drafts {
		room += p.room(draft)
	}
	return room
}

// akin reports whether a slice has the affinity of the first of the endpoints. A
// slice has that of its endpoint in the middle, because endpoints stand in the
// order in which they came, and of two kinds the middle belongs to the one with more.
func (p *places) akin(draft *draft, endpoints []desired.Endpoint) bool {
	if len(draft.endpoints) == 0 {
		return false
	}
	target := draft.endpoints[len(draft.endpoints)/2].TargetRef
	return target != nil && p.affinity(target.Name) == p.affinity(endpoints[0].PodName)
}
