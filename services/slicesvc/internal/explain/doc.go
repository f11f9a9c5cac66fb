// Package explain makes the evidence chain of a Pod in a Service: why the Pod is an endpoint, or
// why not, from the selector to the endpoint in a slice and its hints.
//
// Promise: a chain always has all links, in this order: SERVICE, SELECTOR, PHASE, ADDRESS, NODE,
// READINESS, TERMINATION, PORTS, SLICE, HINTS. SELECTOR has one link for each label, or one if
// there is none. ADDRESS and SLICE have one link for each family. Equal Facts give equal chains.
// Facts are not changed.
//
// The package decides nothing: package desired decides about the endpoint, as in a sync.
//
// A link is broken if the Pod gets no traffic because of it; the first broken link is where to
// begin. A link is doubtful if something is about to change, or if the Pod gets only a part of its
// traffic. Times are those of objects; a link without one has the time of the explanation.
package explain
