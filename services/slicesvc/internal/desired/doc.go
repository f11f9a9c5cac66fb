// Package desired decides which endpoints a Service should have.
//
// Promise: from a Service, the Pods that its selector matches and what is known of their Nodes,
// Resolve returns the endpoints of every address family, grouped by the set of ports that they
// serve, as the endpointslice controller of kube-controller-manager would publish them.
//
// An Endpoint may also be an address of a mirrored Endpoints object, which package mirror resolves.
//
// Invariants: no I/O, no clock. Inputs are never changed. Families and groups come out in a fixed
// order, and endpoints in the order of the Pods. Endpoints and the keys of groups are plain
// comparable values: endpoints are compared with ==, and a set of ports is a map key.
//
// The package knows nothing of EndpointSlices and their limit. It sets the hints of
// spec.trafficDistribution, which depend on one endpoint, but not those of the topology annotation,
// which depend on all endpoints.
package desired
