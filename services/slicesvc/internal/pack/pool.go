package pack

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// pool holds the endpoints of a group that have no place yet.
type pool struct {
	places map[desired.Identity]int
	all    []desired.Endpoint
	placed []bool
}

func newPool(endpoints []desired.Endpoint) *pool {
	p := &pool{
		places: make(map[desired.Identity]int, len(endpoints)),
		all:    endpoints,
		placed: make([]bool, len(endpoints)),
	}
	for i := range endpoints {
		if _, repeated := p.places[endpoints[i].Identity]; repeated {
			p.placed[i] = true
			continue
		}
		p.places[endpoints[i].Identity] = i
	}
	return p
}

// take hands out the endpoint of that identity, once.
func (p *pool) take(identity desired.Identity) (desired.Endpoint, bool) {
	i, ok := p.places[identity]
	if !ok || p.placed[i] {
		return desired.Endpoint{}, false
	}
	p.placed[i] = true
	return p.all[i], true
}

// rest gives what was not taken, ordered by address, hostname and pod, so that
// equal inputs make equal slices.
func (p *pool) rest() []desired.Endpoint {
	var rest []desired.Endpoint
	for i := range p.all {
		if !p.placed[i] {
			rest = append(rest, p.all[i])
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

// keep starts a draft from an existing slice with those of its endpoints that
// are wanted, in their places. Repeats go, and so does what is above the limit,
// which finds a place elsewhere: it happens when the limit was lowered. A Service
// that goes away gets no slice where that place could be, and keeps what it has.
func keep(slice *discoveryv1.EndpointSlice, wanted *pool, in Input) *draft {
	kept := &draft{
		from:        slice,
		addressType: slice.AddressType,
		ports:       slice.Ports,
		reason:      EndpointsChanged,
	}
	// Nearly all endpoints of nearly all slices stay where they are: to copy them at
	// once and move what has to be moved costs a fraction of copying one by one.
	endpoints, n := slices.Clone(slice.Endpoints), 0
	stay := func(i int) {
		if n != i {
			endpoints[n] = slice.Endpoints[i]
		}
		n++
	}
	for i := range slice.Endpoints {
		if n == in.Limit && !in.ending() {
			kept.removed++
			kept.moved = true
			continue
		}
		if in.Part.keeps(&slice.Endpoints[i]) {
			stay(i)
			continue
		}
		found, exact := desired.Observe(&slice.Endpoints[i])
		want, ok := wanted.take(found.Identity)
		switch {
		case !ok:
			kept.removed++
		case exact && want == found:
			stay(i)
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

// untouched is the draft of a slice that is as it should be.
func untouched(slice *discoveryv1.EndpointSlice) *draft {
	return &draft{
		from:        slice,
		addressType: slice.AddressType,
		ports:       slice.Ports,
		endpoints:   slice.Endpoints[:len(slice.Endpoints):len(slice.Endpoints)], // to add to them copies them
		reason:      EndpointsChanged,
	}
}
