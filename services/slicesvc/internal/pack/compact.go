package pack

import (
	"cmp"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Compact plans to have fewer slices for the same endpoints: the endpoints of the emptiest slices
// go into other slices, and then the emptied ones are deleted. It is for a Service that has been
// quiet for a while: the plan is empty unless Make has nothing to do. After the plan is applied,
// Make has nothing to do either.
//
// The plan makes at most budget writes, and as few as it can: one for each slice that takes
// endpoints and one for each that goes. A slice that goes may cost one other write. While there are
// more than 1.2 times the slices that are needed, it may cost as many as it takes, which is five at
// most. With a budget of at least six, Compact repeated ends with no more than 1.2 times the
// slices.
//
// The updates precede the deletions, and each deletion supersedes: while the plan is applied, an
// endpoint may be in two slices for a moment, but never in none. Repeat must follow. Until it is
// done, there is no further plan, so that a step never moves what an earlier step has moved.
func Compact(in Input, budget int) Plan {
	in.ChangeTime = time.Time{} // no endpoint changes
	p := newPlanner(in, nil)
	existing := sorted(in.Slices)
	if p.ending() || slices.ContainsFunc(existing, TookEndpointsLately) || !Make(in).Empty() {
		return Plan{}
	}
	var all drafts
	for _, family := range in.Endpoints.Families {
		byPorts := map[desired.PortKey][]*discoveryv1.EndpointSlice{}
		for _, slice := range ofType(existing, family.AddressType) {
			key := desired.KeyOf(slice.Ports)
			byPorts[key] = append(byPorts[key], slice)
		}
		for i := range family.Groups {
			compactor := newCompactor(byPorts[family.Groups[i].Key], p.Limit)
			all.append(compactor.compact(budget - len(all.update) - len(all.delete)))
		}
	}
	return p.render(all)
}

// compactor plans to have fewer slices for one group.
type compactor struct {
	limit int
	// slices are in order of their number of endpoints, the emptiest first.
	slices []*discoveryv1.EndpointSlice
	// endpoints[i] is the sum of endpoints in the first i slices.
	endpoints []int
}

func newCompactor(among []*discoveryv1.EndpointSlice, limit int) *compactor {
	c := &compactor{
		limit:     limit,
		slices:    slices.Clone(among),
		endpoints: make([]int, 1, len(among)+1),
	}
	slices.SortStableFunc(c.slices, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Compare(len(a.Endpoints), len(b.Endpoints))
	})
	for i, slice := range c.slices {
		c.endpoints = append(c.endpoints, c.endpoints[i]+len(slice.Endpoints))
	}
	return c
}

// compact plans at most budget writes.
func (c *compactor) compact(budget int) drafts {
	going, taking := c.choose(budget)
	var result drafts
	var moving []discoveryv1.Endpoint
	for _, slice := range c.slices[:going] {
		result.drop(slice, Compacted)
		moving = append(moving, slice.Endpoints...)
	}
	for _, slice := range c.slices[going : going+taking] {
		n := min(c.limit-len(slice.Endpoints), len(moving))
		result.update = append(result.update, &draft{
			from:        slice,
			addressType: slice.AddressType,
			ports:       slice.Ports,
			endpoints:   slices.Concat(slice.Endpoints, moving[:n]),
			reason:      Compacted,
			added:       n,
			takes:       n > 0,
		})
		moving = moving[n:]
	}
	return result
}

// choose returns how many of the emptiest slices go, and how many of the next ones take their
// endpoints; 0 and 0 if it is not worth the writes.
func (c *compactor) choose(budget int) (going, taking int) {
	count := len(c.slices)
	for going := count - c.needed(); going > 0; going-- {
		if taking := c.takers(going); taking <= going && going+taking <= budget {
			return going, taking
		}
	}
	for going := count - c.tolerated(); going > 0; going-- {
		if taking := c.takers(going); going+taking <= budget {
			return going, taking
		}
	}
	return 0, 0
}

// needed returns how many slices the endpoints fill, at least one.
func (c *compactor) needed() int {
	return max((c.endpoints[len(c.slices)]+c.limit-1)/c.limit, 1)
}

// tolerated returns how many slices are not worth more than two writes for each that goes.
func (c *compactor) tolerated() int { return max(c.needed()*6/5, 1) }

// takers returns how many slices must be written to take the endpoints of the first going slices.
// The emptiest of the remaining slices have the most free capacity, so they are the fewest.
func (c *compactor) takers(going int) int {
	taking, moving := 0, c.endpoints[going]
	for moving > 0 {
		moving -= c.limit - len(c.slices[going+taking].Endpoints)
		taking++
	}
	return taking
}

// MinSlices returns the least number of slices for the endpoints of the given slices, for a Service
// that is served in so many families. Endpoints of different families or ports share no slice, and
// a family without endpoints has one slice.
func MinSlices(slices []*discoveryv1.EndpointSlice, families, limit int) int {
	endpoints := map[groupKey]int{}
	withEndpoints := map[discoveryv1.AddressType]struct{}{}
	for _, slice := range slices {
		if len(slice.Endpoints) > 0 {
			endpoints[groupKey{addressType: slice.AddressType, ports: desired.KeyOf(slice.Ports)}] += len(slice.Endpoints)
			withEndpoints[slice.AddressType] = struct{}{}
		}
	}
	least := max(families-len(withEndpoints), 0)
	for _, count := range endpoints {
		least += (count + limit - 1) / limit
	}
	return least
}
