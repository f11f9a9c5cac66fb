// Package explain makes the evidence chain of a Pod in a Service: why the Pod is an endpoint, or
// why not, from the selector to the endpoint in a slice and its hints.
//
// Promise: a chain has the links SERVICE, SELECTOR (one for each label, one if there is none),
// PHASE, ADDRESS (one for each family), NODE, READINESS, TERMINATION, PORTS, SLICE (one for each
// family) and HINTS: always all of them, in this order. Equal Facts give equal chains. Facts are
// not changed.
//
// The package decides nothing: package desired decides about the endpoint, as in a sync.
//
// A link is broken if the Pod gets no traffic because of it; the first broken link is where to
// begin. A link is doubtful if something is about to change, or if the Pod gets only a part of its
// traffic. Times are those of objects; a link without one has the time of the explanation.
package explain
