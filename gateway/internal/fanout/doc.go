// Package fanout keeps the connections to the replicas of a cluster and asks all of them for their status at the same time.
//
// A replica that is slow, dead or unreachable costs its own answer and nothing else: every call has the same deadline, so a
// round takes no longer than one of them, and each failure is told with its gRPC code. Asking is a read; a replica is never
// asked twice in one round except by gRPC's own retry of UNAVAILABLE.
//
// Connections are opened when first needed and kept between rounds, one per replica rather than one per address: a process
// that takes over the address of a dead one must not inherit the connection that is backing off from it. [Pool.Keep] closes
// those whose replica has left.
package fanout
