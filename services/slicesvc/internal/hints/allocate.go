package hints

import (
	"cmp"
	"fmt"
	"slices"
)

const (
	// enterPercent is the largest load, in percent of an even share, at which hints come.
	enterPercent = 120
	// leavePercent is the load above which hints change or go.
	leavePercent = 130
)

// Endpoint is a ready endpoint to be allocated.
type Endpoint struct {
	// Zone is the zone of its Node; empty when not known.
	Zone string
	// Hint is the zone that it is meant for so far; empty for none.
	Hint string
	// Slice names the slice that has it; empty for none. Hints change in as few slices as the order
	// of endpoints allows.
	Slice string
	// Key is unique among the endpoints.
	Key string
}

// Verdict is what became of a wish for hints.
type Verdict struct {
	// Hinted tells that every ready endpoint has a hint.
	Hinted bool
	// Problem tells people why there are no hints; empty when there are.
	Problem string
	// Note tells people what limits the hints; empty for nothing.
	Note string
}

// Allocate returns for each endpoint the zone that it is meant for, or nil and a problem in the
// verdict.
func Allocate(shares Shares, endpoints []Endpoint) ([]string, Verdict) {
	hinted := slices.ContainsFunc(endpoints, func(e Endpoint) bool { return shares.find(e.Hint) >= 0 })
	minima, problem := shares.required(len(endpoints), hinted)
	if problem != "" {
		return nil, Verdict{Problem: problem}
	}
	a := newAllocator(shares, endpoints)
	if !hinted {
		a.balance(minima)
	}
	if tolerated, _ := shares.minima(len(endpoints), leavePercent); !hinted || !a.satisfies(tolerated) {
		a.raise(minima)
	}
	return a.hints(), Verdict{Hinted: true, Note: shares.note()}
}

// required returns how many of n endpoints each zone must have, or why that is impossible. The
// bound is looser when some endpoints have hints already.
func (s Shares) required(n int, hinted bool) (minima []int, problem string) {
	switch {
	case n == 0:
		return nil, "no endpoint is ready"
	case len(s.zones) == 0 && s.leftOut > 0:
		return nil, fmt.Sprintf("none of the %d ready nodes has a zone and allocatable CPU", s.nodes)
	case len(s.zones) == 0:
		return nil, "no node is ready"
	case len(s.zones) == 1:
		return nil, fmt.Sprintf("nodes are ready in one zone only, %s", s.zones[0].zone)
	case n < len(s.zones):
		return nil, fmt.Sprintf("%d ready endpoints are fewer than the %d zones", n, len(s.zones))
	}
	minima, ok := s.minima(n, enterPercent)
	percent := enterPercent
	if !ok && hinted {
		minima, ok = s.minima(n, leavePercent)
		percent = leavePercent
	}
	if !ok {
		return nil, fmt.Sprintf("%d ready endpoints cannot be shared out among %d zones without loading one above %d percent", n, len(s.zones), percent)
	}
	return minima, ""
}

// note tells which Nodes are left out.
func (s Shares) note() string {
	if s.leftOut == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d ready nodes have no zone or no allocatable CPU and are not counted", s.leftOut, s.nodes)
}

// allocator makes one allocation. Zones and endpoints are their indexes in shares and endpoints.
type allocator struct {
	shares    Shares
	endpoints []Endpoint
	// zoneOf is the zone that each endpoint is meant for; counts is the number of endpoints of each
	// zone.
	zoneOf []int
	counts []int
	// candidates are the endpoints that each zone may give to another.
	candidates []*candidates
}

// candidates are the endpoints that are meant for one zone, by what it costs to give them away.
// Each kind is in order of slice, so that few slices change.
type candidates struct {
	// fresh endpoints have no hint yet.
	fresh []int
	// remote endpoints have a hint for another zone than their own, by their own zone; -1 for none.
	remote map[int][]int
	// local endpoints have a hint for their own zone.
	local []int
}

// newAllocator keeps existing hints, and puts an endpoint without one into its own zone, or into
// the zone that needs it most if its own zone has no share.
func newAllocator(shares Shares, endpoints []Endpoint) *allocator {
	a := &allocator{
		shares:     shares,
		endpoints:  endpoints,
		zoneOf:     make([]int, len(endpoints)),
		counts:     make([]int, len(shares.zones)),
		candidates: make([]*candidates, len(shares.zones)),
	}
	for i := range a.candidates {
		a.candidates[i] = &candidates{remote: map[int][]int{}}
	}
	var zoneless []int
	for _, i := range inOrder(endpoints) {
		zone := shares.find(endpoints[i].Hint)
		if zone < 0 {
			zone = shares.find(endpoints[i].Zone)
		}
		if zone < 0 {
			zoneless = append(zoneless, i)
			continue
		}
		a.put(i, zone)
	}
	for _, i := range zoneless {
		a.put(i, a.neediest())
	}
	return a
}

// inOrder returns the endpoints' indexes in an order that does not depend on theirs.
func inOrder(endpoints []Endpoint) []int {
	order := make([]int, len(endpoints))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := &endpoints[i], &endpoints[j]
		return cmp.Or(
			cmp.Compare(a.Slice, b.Slice),
			cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.Zone, b.Zone),
			cmp.Compare(a.Hint, b.Hint),
		)
	})
	return order
}

func (a *allocator) put(i, zone int) {
	a.zoneOf[i] = zone
	a.counts[zone]++
	c, own := a.candidates[zone], a.shares.find(a.endpoints[i].Zone)
	switch {
	case a.shares.find(a.endpoints[i].Hint) < 0:
		c.fresh = append(c.fresh, i)
	case own != zone:
		c.remote[own] = append(c.remote[own], i)
	default:
		c.local = append(c.local, i)
	}
}

// neediest returns the zone that has the fewest endpoints for its share.
func (a *allocator) neediest() int {
	best := 0
	for i := range a.counts {
		// Compares counts/cpu, with one more endpoint in each, so that of two empty zones the
		// larger wins.
		if int64(a.counts[i]+1)*a.shares.zones[best].cpu < int64(a.counts[best]+1)*a.shares.zones[i].cpu {
			best = i
		}
	}
	return best
}

// balance moves endpoints from the zone with the largest surplus to the zone with the largest need,
// as long as the move matters: one of the two is off by a whole endpoint, and neither by less than
// half.
func (a *allocator) balance(minima []int) {
	surplus := make([]int64, len(a.counts))
	for i, zone := range a.shares.zones {
		target := max(zone.cpu*int64(len(a.endpoints)), int64(minima[i])*a.shares.total)
		surplus[i] = int64(a.counts[i])*a.shares.total - target
	}
	one := a.shares.total
	for {
		from, to := indexOfMax(surplus), indexOfMin(surplus)
		give, need := surplus[from], -surplus[to]
		if max(give, need) < one || 2*min(give, need) < one {
			return
		}
		a.move(from, to)
		surplus[from] -= one
		surplus[to] += one
	}
}

// satisfies reports whether every zone has its minimum.
func (a *allocator) satisfies(minima []int) bool {
	for i := range minima {
		if a.counts[i] < minima[i] {
			return false
		}
	}
	return true
}

// raise gives every zone at least its minimum. The sum of the minima is at most the number of
// endpoints, so while one zone has too few, another one has too many.
func (a *allocator) raise(minima []int) {
	spare := make([]int64, len(a.counts))
	for i := range a.counts {
		spare[i] = int64(a.counts[i] - minima[i])
	}
	for {
		from, to := indexOfMax(spare), indexOfMin(spare)
		if spare[to] >= 0 || spare[from] <= 0 {
			return
		}
		a.move(from, to)
		spare[from]--
		spare[to]++
	}
}

// move moves one endpoint to another zone: a fresh one, else a remote one of that zone, else any
// remote one, else a local one.
func (a *allocator) move(from, to int) {
	c := a.candidates[from]
	a.counts[from]--
	switch {
	case len(c.fresh) > 0:
		c.fresh = a.moveFirst(c.fresh, to)
		return
	case len(c.remote[to]) > 0:
		c.remote[to] = a.moveFirst(c.remote[to], to)
		return
	}
	for own := -1; own < len(a.counts); own++ {
		if len(c.remote[own]) > 0 {
			c.remote[own] = a.moveFirst(c.remote[own], to)
			return
		}
	}
	c.local = a.moveFirst(c.local, to)
}

// moveFirst puts the first endpoint into a zone and returns the others.
func (a *allocator) moveFirst(endpoints []int, to int) []int {
	a.put(endpoints[0], to)
	return endpoints[1:]
}

func (a *allocator) hints() []string {
	hints := make([]string, len(a.zoneOf))
	for i, zone := range a.zoneOf {
		hints[i] = a.shares.zones[zone].zone
	}
	return hints
}

// indexOfMax returns the index of the largest value, the first of several.
func indexOfMax(values []int64) int { return slices.Index(values, slices.Max(values)) }

// indexOfMin returns the index of the smallest value, the first of several.
func indexOfMin(values []int64) int { return slices.Index(values, slices.Min(values)) }
