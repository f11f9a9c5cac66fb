// Package desired decides which endpoints a Service should have.
//
// Promise: from a Service, the pods its selector matches and what is known of
// their nodes, Resolve gives the endpoints of every address family, grouped by
// the set of ports they serve, as the endpointslice controller of
// kube-controller-manager would publish them. Judge gives the same verdict for
// one pod in words.
//
// Invariants: no I/O, no clock; inputs are never changed; families and groups
// come out in a fixed order, and endpoints in the order of the pods given.
// Endpoint and Group keys are plain comparable values, so that two endpoints
// are compared with == and a set of ports is a map key.
//
// What it does not do: it knows nothing of EndpointSlices, of how many
// endpoints fit into one, or of the hints of the topology annotation, which
// depend on all endpoints at once; those of spec.trafficDistribution, which do
// not, are set.
package desired
