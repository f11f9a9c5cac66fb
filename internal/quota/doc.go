// Package quota limits the calls of each identity. One table, [Methods], has the limits of every
// method: calls per second, burst, calls in flight and the size of a request.
//
// The identity is the user on whose behalf a call is made, not its address: a gateway's calls for
// others count for them. A caller without an identity counts by its address. Gateways and servers
// that call for themselves have [peerFactor] times the limits, because one of them reads for many
// callers. Streams are in flight until they end.
//
// Promises:
//   - A method without limits does not start: a server calls [Quota.Covers] before it serves.
//   - [Quota.Admit] allocates nothing for a call that it admits.
//   - The memory is bounded. An identity is forgotten only when a new meter would admit exactly the
//     same calls. If no identity can be forgotten, further identities share one meter; they never
//     go without.
//   - Callers without an identity, users, and replicas of Trivet never take the place of each other
//     in that bound.
//
// Of heartbeats, only the size of a message has its limit here: leasesvc counts calls and messages,
// with one meter for streams and unary calls.
package quota
