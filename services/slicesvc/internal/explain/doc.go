// Package explain makes the evidence chain of an endpoint of a Service: why a Pod or an address is
// an endpoint, or why not, from the selector to the endpoint in a slice and its hints.
//
// Promise: a chain always has all links, in this order: SERVICE, ENDPOINTS, SELECTOR, PHASE,
// ADDRESS, NODE, READINESS, TERMINATION, PORTS, SLICE, HINTS. ENDPOINTS is absent if the Service
// has a selector and the endpoint is none of an Endpoints object. SELECTOR has one link for each
// label, or one if there is none. ADDRESS and SLICE have one link for each family. Equal Facts give
// equal chains. Facts are not changed.
//
// The package decides nothing: package desired decides about the endpoint of a Pod, and package
// mirror about that of an Endpoints object, as in a sync.
//
// A link is FAILED if the endpoint gets no traffic because of it; the first failed link is where to
// begin. A link is a WARNING if something is about to change, or if the endpoint gets only a part
// of its traffic. Times are those of objects; a link without one has the time of the explanation.
//
// An address that no Pod of the namespace has is explained by what the slices say.
package explain
