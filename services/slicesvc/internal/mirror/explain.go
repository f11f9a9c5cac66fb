package mirror

import corev1 "k8s.io/api/core/v1"

// Dropped says why an address of an Endpoints object is in no slice; empty if it is in one.
type Dropped string

const (
	// InvalidAddress: the text is no IP address.
	InvalidAddress Dropped = "INVALID_ADDRESS"
	// OverLimit: the ports of the subset have more addresses than are mirrored.
	OverLimit Dropped = "OVER_LIMIT"
	// Duplicate: another address of the same ports has the same IP, hostname and target name, and
	// is in the slice instead.
	Duplicate Dropped = "DUPLICATE"
)

// Origin is one place of an address in an Endpoints object.
type Origin struct {
	// Subset is the position in subsets, from 0.
	Subset int
	// Ready tells that the address is in addresses, not in notReadyAddresses.
	Ready bool
	// ServedReady tells that the endpoint is ready for some port of the subset. It differs from
	// Ready if another subset has the same address and port as not ready.
	ServedReady bool
	// Address is the address in the Endpoints object.
	Address *corev1.EndpointAddress
	// Dropped is empty if a slice has the address for some port of the subset.
	Dropped Dropped
}

// maxOrigins bounds the places that Explain returns.
const maxOrigins = 100

// Explain returns the first 100 places of an address in an Endpoints object, in order; none if the
// object does not have it. The address may be written in any form. Explain says what the slices
// should have, not what they have, and not whether the object is mirrored: see ReasonOf.
func Explain(endpoints *corev1.Endpoints, limits Limits, text string) []Origin {
	wanted := newAddress(&corev1.EndpointAddress{IP: text})
	var places []Origin
	for i := range endpoints.Subsets {
		for ready, addresses := range readinessOf(&endpoints.Subsets[i]) {
			for j := range addresses {
				if len(places) < maxOrigins && newAddress(&addresses[j]).matches(&wanted) {
					places = append(places, Origin{Subset: i, Ready: ready, Address: &addresses[j]})
				}
			}
		}
	}
	if len(places) == 0 {
		return nil
	}
	repacked := repack(endpoints.Subsets)
	repacked.choose(limits)
	found := repacked.find(&wanted)
	for i := range places {
		found.explain(&places[i], &endpoints.Subsets[places[i].Subset])
	}
	return places
}

// matches reports whether two addresses are the same IP or, if they are invalid, the same text.
func (a address) matches(other *address) bool {
	return a.canonical == other.canonical && (a.canonical != "" || a.IP == other.IP)
}

// foundEntries are the entries of one IP.
type foundEntries struct {
	// subsetOf has the number of the repacked subset of each port.
	subsetOf map[port]int
	entries  map[subsetAddress]entry
}

// subsetAddress names an entry of a repacked subset.
type subsetAddress struct {
	subset int
	key    addressKey
}

// find returns the entries that match an address.
func (r *repackedEndpoints) find(wanted *address) foundEntries {
	found := foundEntries{subsetOf: map[port]int{}, entries: map[subsetAddress]entry{}}
	for i := range r.subsets {
		for _, port := range r.subsets[i].ports {
			found.subsetOf[port] = i
		}
		if r.subsets[i].portless {
			found.subsetOf[port{}] = i
		}
		for _, entry := range r.subsets[i].entries {
			if of := &r.addresses[entry.address]; of.matches(wanted) {
				found.entries[subsetAddress{subset: i, key: keyOf(of.EndpointAddress)}] = entry
			}
		}
	}
	return found
}

// explain sets what becomes of a place: the best of what becomes of it for each port.
func (f foundEntries) explain(place *Origin, of *corev1.EndpointSubset) {
	best, any := overLimit, false // if all ports are left out because of maxWork
	for port := range portsOf(of) {
		number, ok := f.subsetOf[port]
		if !ok {
			continue
		}
		found := f.entries[subsetAddress{subset: number, key: keyOf(place.Address)}]
		if !any || found.dropped < best {
			best, any = found.dropped, true
		}
		place.ServedReady = place.ServedReady || (found.ready && found.dropped == notDropped)
	}
	switch best {
	case duplicate:
		place.Dropped = Duplicate
	case overLimit:
		place.Dropped = OverLimit
	case invalidAddress:
		place.Dropped = InvalidAddress
	}
}
