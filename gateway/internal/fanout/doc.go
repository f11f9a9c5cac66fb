// Package fanout keeps the connections to the replicas. It calls one of them, or asks all of them
// for their status at once.
//
// All calls of a round have the same deadline, so that a replica that hangs delays the round by one
// timeout. Each failure has its gRPC code. Only gRPC's own retry of UNAVAILABLE repeats a call.
//
// A connection is made for the first call and kept between rounds. There is one for each process,
// not for each address: a process at the address of a dead one must not inherit a connection that
// backs off.
package fanout
