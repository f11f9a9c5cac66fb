package pack

import (
	"cmp"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Compact plans to have fewer slices for the same endpoints: those of the
// emptiest go into others, and then these are deleted. It is for a Service that
// has been quiet for a while: unless Make has nothing to do it does nothing, and
// after it Make has nothing to do either.
//
// It makes at most budget writes, and as few as it can: one for each slice that
// takes endpoints and one for each that goes. A slice that goes may cost one
// other write, or, as long as there are more than 1.2 times the slices that are
// needed, as many as it takes, which is five at most. With a budget of at least
// six, Compact repeated ends with no more than that.
//
// The updates stand before the deletions, and each deletion supersedes: while
// the plan is carried out an endpoint may be in two slices for a moment, but
// never in none.
func Compact(in Input, budget int) Plan {
	in.Limit = max(in.Limit, 1)
	in.ChangeTime = time.Time{} // no endpoint changes
	if in.Part != nil || in.ending() || !Make(in).Empty() {
		return Plan{}
	}
	existing := sorted(in.Slices)
	var all drafts
	for _, family := range in.Endpoints.Families {
		byPorts := map[desired.PortKey][]*discoveryv1.EndpointSlice{}
		for _, slice := range ofType(existing, family.AddressType) {
			key := desired.KeyOf(slice.Ports)
			byPorts[key] = append(byPorts[key], slice)
		}
		for i := range family.Groups {
			merger := newMerger(byPorts[family.Groups[i].Key], in.Limit)
			all.append(merger.merge(budget - len(all.update) - len(all.delete)))
		}
	}
	return all.plan(in, newNaming(in))
}

// merger finds the slices of one group to merge.
type merger struct {
	limit int
	// slices are the emptiest first.
	slices []*discoveryv1.EndpointSlice
	// endpoints[i] counts what the first i slices hold together.
	endpoints []int
}

func newMerger(among []*discoveryv1.EndpointSlice, limit int) *merger {
	m := &merger{
		limit:     limit,
		slices:    slices.Clone(among),
		endpoints: make([]int, 1, len(among)+1),
	}
	slices.SortStableFunc(m.slices, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Compare(len(a.Endpoints), len(b.Endpoints))
	})
	for i, slice := range m.slices {
		m.endpoints = append(m.endpoints, m.endpoints[i]+len(slice.Endpoints))
	}
	return m
}

// merge plans what it can with so many writes.
func (m *merger) merge(budget int) drafts {
	going, taking := m.choose(budget)
	var result drafts
	var moving []discoveryv1.Endpoint
	for _, slice := range m.slices[:going] {
		result.drop(slice, Compacted)
		moving = append(moving, slice.Endpoints...)
	}
	for _, slice := range m.slices[going : going+taking] {
		n := min(m.limit-len(slice.Endpoints), len(moving))
		result.update = append(result.update, &draft{
			from:        slice,
			addressType: slice.AddressType,
			ports:       slice.Ports,
			endpoints:   slices.Concat(slice.Endpoints, moving[:n]),
			reason:      Compacted,
			added:       n,
		})
		moving = moving[n:]
	}
	return result
}

// choose gives how many slices go, from the emptiest on, and how many of those
// that follow take their endpoints; none if that is not worth it.
func (m *merger) choose(budget int) (going, taking int) {
	count := len(m.slices)
	for going := count - m.needed(); going > 0; going-- {
		if taking := m.takers(going); taking <= going && going+taking <= budget {
			return going, taking
		}
	}
	for going := count - m.tolerated(); going > 0; going-- {
		if taking := m.takers(going); going+taking <= budget {
			return going, taking
		}
	}
	return 0, 0
}

// needed is how many slices the endpoints would fill, at least one.
func (m *merger) needed() int {
	return max((m.endpoints[len(m.slices)]+m.limit-1)/m.limit, 1)
}

// tolerated is how many slices are not worth a greater effort.
func (m *merger) tolerated() int { return max(m.needed()*6/5, 1) }

// takers gives how many of the slices that stay must be written to take the
// endpoints of the first so many. The emptiest have most room, so they are the fewest.
func (m *merger) takers(going int) int {
	taking, moving := 0, m.endpoints[going]
	for moving > 0 {
		moving -= m.limit - len(m.slices[going+taking].Endpoints)
		taking++
	}
	return taking
}
