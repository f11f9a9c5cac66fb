// Package explain tells people why a pod is an endpoint of a Service or is not: from the Service's selector to the place in a
// slice and its hints, each link with what was found, where, and what to look at next.
//
// Promise: Explain puts together what one replica knows at one moment and decides nothing: whether the pod has an endpoint, and
// which, is asked of package desired, as a pass does. Equal Facts give equal chains, and Facts are not changed. A chain has the
// links SERVICE, SELECTOR (one for each label, one if there is none), PHASE, ADDRESS (one for each family the Service is served
// in), NODE, READINESS, TERMINATION, PORTS, SLICE (one for each family) and HINTS, always all of them, in this order.
//
// A link is broken when, because of it, the pod gets no traffic of the Service; the first broken one is where to begin. It is
// doubtful when something is about to change, or when it costs the pod only part of its traffic.
//
// Sentences are for somebody whose pod gets no traffic: what is the case, and what to do. Times are those that objects contain;
// a link without one says when it was looked at.
package explain
