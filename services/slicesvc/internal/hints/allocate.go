package hints

import (
	"cmp"
	"fmt"
	"slices"
)

const (
	// Hints come when no endpoint is meant for more than enterPercent of its even share,
	enterPercent = 120
	// and stay as they are until one is meant for more than leavePercent.
	leavePercent = 130
)

// Endpoint is a ready endpoint to be allocated.
type Endpoint struct {
	// Zone is where it is; empty when not known.
	Zone string
	// Hint is the zone it is meant for so far; empty for none.
	Hint string
	// Slice names the slice it is in; empty when it is in none yet. Hints are
	// changed in as few slices as the order of endpoints allows.
	Slice string
	// Key tells it from the others.
	Key string
}

// Verdict is what became of a wish for hints.
type Verdict struct {
	// Hinted says that every ready endpoint has a hint.
	Hinted bool
	// Problem says for people why there are no hints; empty when there are.
	Problem string
	// Note says for people what limits hints that there are; empty for nothing.
	Note string
}

// Allocate gives for each endpoint the zone it is meant for, all of them or,
// with nil and a problem in the verdict, none.
func Allocate(shares Shares, endpoints []Endpoint) ([]string, Verdict) {
	hinted := slices.ContainsFunc(endpoints, func(e Endpoint) bool { return shares.find(e.Hint) >= 0 })
	bound, problem := shares.bound(len(endpoints), hinted)
	if problem != "" {
		return nil, Verdict{Problem: problem}
	}
	board := newBoard(shares, endpoints)
	if !hinted {
		board.even(bound)
	}
	if tolerated, _ := shares.minima(len(endpoints), leavePercent); !hinted || !board.has(tolerated) {
		board.raise(bound)
	}
	return board.hints(), Verdict{Hinted: true, Note: shares.note()}
}

// bound gives how many endpoints each zone must have, or why that cannot be.
// What is hinted already may be bound less tightly.
func (s Shares) bound(n int, hinted bool) (minima []int, problem string) {
	switch {
	case n == 0:
		return nil, "no endpoint is ready"
	case len(s.zones) == 0 && s.silent > 0:
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

// note says what about the nodes limits hints.
func (s Shares) note() string {
	if s.silent == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d ready nodes have no zone or no allocatable CPU and are not counted", s.silent, s.nodes)
}

// board is an allocation in the making.
type board struct {
	shares    Shares
	endpoints []Endpoint
	// at is the zone each endpoint is meant for, and counts how many each zone has.
	at     []int
	counts []int
	// giveable holds the endpoints of each zone, those to be given away first in front.
	giveable []*offers
}

// offers are the endpoints of one zone, by what it costs to give them away.
// Within a kind they are in order of slice, so that few slices change.
type offers struct {
	// fresh have no hint yet.
	fresh []int
	// guests, by the zone they are in, are hinted elsewhere.
	guests map[int][]int
	// others are hinted to their own zone.
	others []int
}

// newBoard leaves hints where they are, puts endpoints without one into their
// own zones, and those without a zone that counts where they are needed most.
func newBoard(shares Shares, endpoints []Endpoint) *board {
	b := &board{
		shares:    shares,
		endpoints: endpoints,
		at:        make([]int, len(endpoints)),
		counts:    make([]int, len(shares.zones)),
		giveable:  make([]*offers, len(shares.zones)),
	}
	for i := range b.giveable {
		b.giveable[i] = &offers{guests: map[int][]int{}}
	}
	var homeless []int
	for _, i := range inOrder(endpoints) {
		zone := shares.find(endpoints[i].Hint)
		if zone < 0 {
			zone = shares.find(endpoints[i].Zone)
		}
		if zone < 0 {
			homeless = append(homeless, i)
			continue
		}
		b.put(i, zone)
	}
	for _, i := range homeless {
		b.put(i, b.neediest())
	}
	return b
}

// inOrder gives the endpoints' indexes in an order that does not depend on theirs.
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

func (b *board) put(i, zone int) {
	b.at[i] = zone
	b.counts[zone]++
	offers, home := b.giveable[zone], b.shares.find(b.endpoints[i].Zone)
	switch {
	case b.shares.find(b.endpoints[i].Hint) < 0:
		offers.fresh = append(offers.fresh, i)
	case home != zone:
		offers.guests[home] = append(offers.guests[home], i)
	default:
		offers.others = append(offers.others, i)
	}
}

// give means one endpoint of a zone for another: one without a hint, else one
// that comes home, else a guest from anywhere, else any.
func (b *board) give(from, to int) {
	offers := b.giveable[from]
	b.counts[from]--
	switch {
	case len(offers.fresh) > 0:
		offers.fresh = b.moved(offers.fresh, to)
		return
	case len(offers.guests[to]) > 0:
		offers.guests[to] = b.moved(offers.guests[to], to)
		return
	}
	for home := -1; home < len(b.counts); home++ {
		if len(offers.guests[home]) > 0 {
			offers.guests[home] = b.moved(offers.guests[home], to)
			return
		}
	}
	offers.others = b.moved(offers.others, to)
}

// moved puts the first of the offers into a zone and returns the others.
func (b *board) moved(offers []int, to int) []int {
	b.put(offers[0], to)
	return offers[1:]
}

// even moves endpoints from the zones that have most above their share to those
// that have most below, as long as the move matters: one of the two is off by a
// whole endpoint, and neither by less than half of one.
func (b *board) even(minima []int) {
	surplus := make([]int64, len(b.counts))
	for i, zone := range b.shares.zones {
		target := max(zone.cpu*int64(len(b.endpoints)), int64(minima[i])*b.shares.total)
		surplus[i] = int64(b.counts[i])*b.shares.total - target
	}
	one := b.shares.total
	for {
		from, to := most(surplus), least(surplus)
		give, need := surplus[from], -surplus[to]
		if max(give, need) < one || 2*min(give, need) < one {
			return
		}
		b.give(from, to)
		surplus[from] -= one
		surplus[to] += one
	}
}

// raise gives every zone at least its minimum. The minima are together not more
// than there are endpoints, so one that lacks some has one that can give.
func (b *board) raise(minima []int) {
	spare := make([]int64, len(b.counts))
	for i := range b.counts {
		spare[i] = int64(b.counts[i] - minima[i])
	}
	for {
		from, to := most(spare), least(spare)
		if spare[to] >= 0 || spare[from] <= 0 {
			return
		}
		b.give(from, to)
		spare[from]--
		spare[to]++
	}
}

func (b *board) has(minima []int) bool {
	for i := range minima {
		if b.counts[i] < minima[i] {
			return false
		}
	}
	return true
}

// neediest is the zone that has the fewest endpoints for its share.
func (b *board) neediest() int {
	best := 0
	for i := range b.counts {
		// counts[i]/cpu[i] < counts[best]/cpu[best]; one more is counted so that of two empty zones the greater comes first
		if int64(b.counts[i]+1)*b.shares.zones[best].cpu < int64(b.counts[best]+1)*b.shares.zones[i].cpu {
			best = i
		}
	}
	return best
}

func (b *board) hints() []string {
	hints := make([]string, len(b.at))
	for i, zone := range b.at {
		hints[i] = b.shares.zones[zone].zone
	}
	return hints
}

// most gives the index of the greatest value, the first of several.
func most(values []int64) int {
	best := 0
	for i := range values {
		if values[i] > values[best] {
			best = i
		}
	}
	return best
}

// least gives the index of the smallest value, the first of several.
func least(values []int64) int {
	best := 0
	for i := range values {
		if values[i] < values[best] {
			best = i
		}
	}
	return best
}
