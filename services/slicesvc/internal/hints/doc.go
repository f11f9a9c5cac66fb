// Package hints decides for which zones and Nodes endpoints are meant.
//
// Promise: ModeOf tells how a Service wants its traffic kept near, with the precedence of
// kube-controller-manager's endpointslice controller: the topology annotation with the value Auto
// or auto precedes spec.trafficDistribution, and any other value means no hints. For the
// distributions, Mode.Near returns the hints of one endpoint. For Auto, Allocate divides the ready
// endpoints of a family among the zones, in proportion to the CPU of the zones' Nodes.
//
// Allocate keeps upstream's bound (k8s.io/endpointslice/topologycache): no endpoint is meant for
// more than 1.2 times its even share of the cluster's CPU, or there are no hints. Upstream's result
// depends on the order of a map; this one does not. Two rules keep hints from coming and going:
//
//   - Hysteresis, as KEP-2433 describes it: hints come at an overload of at most 20 percent. They
//     change, and in the end go, only beyond 30 percent.
//   - Minimal change: a hint stays unless its zone has more endpoints than it needs and another
//     zone has too few. Endpoints without a hint move before endpoints with one.
//
// A Node without a zone or without CPU is left out; upstream drops all hints of the cluster for one
// such Node. Leaving it out is safe: on a Node without a zone, kube-proxy uses all endpoints
// evenly, which adds the same load to each and so never lifts the overload of one above the bound.
// A Node with a zone but without CPU adds nothing to its zone's share. The Verdict tells about
// both. A ready endpoint without a zone, or in a zone without a share, is meant for the zone that
// needs it most, because kube-proxy follows hints only when every ready endpoint has one.
//
// Invariants: no I/O, no clock. Inputs are never changed. The order of endpoints and Nodes does not
// matter. Either every ready endpoint has a hint or none has. Allocating again changes nothing.
package hints
