// Package hints decides for which zones and nodes endpoints are meant.
//
// Promise: ModeOf says how a Service wants its traffic kept near, with the
// precedence of kube-controller-manager's endpointslice controller: the
// topology annotation with the value Auto or auto beats
// spec.trafficDistribution, and anything else means no hints. For the
// distributions, Mode.Near gives the hints of one endpoint from that endpoint
// alone. For Auto, Allocate shares the ready endpoints of a family out among the
// zones, in proportion to the CPU of the zones' nodes.
//
// Allocate keeps upstream's bound (k8s.io/endpointslice/topologycache): no
// endpoint is meant for more than 1.2 times its even share of the cluster's
// CPU, or there are no hints. Where upstream's outcome depends on the order of a
// map, ours does not, and two things are added to keep hints from coming and
// going:
//
//   - Hysteresis, as KEP-2433 describes it: hints come at an overload of at most
//     20 percent, and those there are change, and in the end go, only beyond 30.
//   - Minimal change: a hint that is there stays unless its zone has more
//     endpoints than it needs and another zone less; endpoints without a hint are
//     given away before any with one.
//
// A node without a zone or without CPU takes no part in the sharing; upstream
// gives up all hints of the cluster for one of them. This is safe: kube-proxy on
// a node without a zone uses all endpoints evenly, which adds the same to each
// and so never lifts the overload of one above the bound. A node that tells its
// zone but no CPU adds nothing to its zone's share until it does. Either is said
// in the Verdict. A ready endpoint without a zone, or in a zone without a share,
// is meant for the zone that needs it most, because kube-proxy looks at hints
// only when every ready endpoint has one.
//
// Invariants: no I/O, no clock; inputs are never changed; the order of endpoints
// and nodes does not matter; either every ready endpoint has a hint or none has;
// allocating what was allocated changes nothing.
package hints
