package pack

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Ideal is the least number of slices into which the endpoints of these slices
// fit, with a limit of endpoints each, for a Service that is served in so many
// families: endpoints of different ports share no slice, and a family without an
// endpoint has one slice all the same.
func Ideal(slices []*discoveryv1.EndpointSlice, families, limit int) int {
	type shelf struct {
		family discoveryv1.AddressType
		ports  desired.PortKey
	}
	endpoints := map[shelf]int{}
	peopled := map[discoveryv1.AddressType]struct{}{}
	for _, slice := range slices {
		if len(slice.Endpoints) > 0 {
			endpoints[shelf{family: slice.AddressType, ports: desired.KeyOf(slice.Ports)}] += len(slice.Endpoints)
			peopled[slice.AddressType] = struct{}{}
		}
	}
	ideal := max(families-len(peopled), 0)
	for _, count := range endpoints {
		ideal += (count + limit - 1) / limit
	}
	return ideal
}
