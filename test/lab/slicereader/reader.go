package slicereader

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Event is one event of a watch of slices.
type Event struct {
	// Slice is what the slice is now or, for a deletion, was last.
	Slice   *discoveryv1.EndpointSlice
	Deleted bool
}

// Key is what a Reader knows an endpoint by. An endpoint has one of each port if ports count.
type Key func(*discoveryv1.EndpointSlice, *discoveryv1.Endpoint) []string

// ByAddress knows an endpoint by its first address. It is stricter than any client.
func ByAddress(_ *discoveryv1.EndpointSlice, endpoint *discoveryv1.Endpoint) []string {
	return endpoint.Addresses[:min(len(endpoint.Addresses), 1)]
}

// ByPort knows an endpoint by its first address with each port, as Cilium does, and Linkerd without
// a Pod. The address of a mirrored endpoint may be in several slices with other ports.
func ByPort(slice *discoveryv1.EndpointSlice, endpoint *discoveryv1.Endpoint) []string {
	var keys []string
	for i := range slice.Ports {
		for _, address := range ByAddress(slice, endpoint) {
			keys = append(keys, address+" "+slice.Ports[i].String())
		}
	}
	return keys
}

// ByPod knows an endpoint by its family and its Pod, as Linkerd does.
func ByPod(slice *discoveryv1.EndpointSlice, endpoint *discoveryv1.Endpoint) []string {
	if endpoint.TargetRef == nil {
		return ByAddress(slice, endpoint)
	}
	return []string{fmt.Sprintf("%s %s/%s", slice.AddressType, endpoint.TargetRef.Namespace, endpoint.TargetRef.Name)}
}

// Reader is a simple reader of the slices of one Service. It is not safe for concurrent use.
type Reader struct {
	key Key
	// slices has the last version of each slice by name.
	slices map[string]*discoveryv1.EndpointSlice
	// known has the endpoints to which the reader sends traffic.
	known map[string]struct{}
}

// New returns a Reader that knows nothing.
func New(key Key) *Reader {
	return &Reader{key: key, slices: map[string]*discoveryv1.EndpointSlice{}, known: map[string]struct{}{}}
}

// Apply applies the events of one batch, of which the last one of each slice counts. A reader that
// applies each event alone gets batches of one.
func (r *Reader) Apply(batch ...Event) {
	last := map[string]Event{}
	for _, event := range batch {
		last[event.Slice.Name] = event
	}
	for name := range last {
		if before := r.slices[name]; before != nil {
			for _, key := range r.keys(before, func(*discoveryv1.Endpoint) bool { return true }) {
				delete(r.known, key)
			}
		}
	}
	for name, event := range last {
		if event.Deleted {
			delete(r.slices, name)
			continue
		}
		r.slices[name] = event.Slice
		for _, key := range r.keys(event.Slice, ready) {
			r.known[key] = struct{}{}
		}
	}
}

// Missing returns the ready endpoints of the slices that it has seen and does not know, sorted.
func (r *Reader) Missing() []string {
	var missing []string
	for _, slice := range r.slices {
		for _, key := range r.keys(slice, ready) {
			if _, known := r.known[key]; !known {
				missing = append(missing, key)
			}
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

func (r *Reader) keys(slice *discoveryv1.EndpointSlice, which func(*discoveryv1.Endpoint) bool) []string {
	var keys []string
	for i := range slice.Endpoints {
		if which(&slice.Endpoints[i]) {
			keys = append(keys, r.key(slice, &slice.Endpoints[i])...)
		}
	}
	return keys
}

func ready(endpoint *discoveryv1.Endpoint) bool {
	return endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
}
