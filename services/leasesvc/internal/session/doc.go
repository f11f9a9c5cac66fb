// Package session keeps who is alive: one session for every holder that beats.
//
// Promise: a session is Alive while its beats arrive, Suspect once it has been silent for its class's Suspect time, Expired
// after its TTL, and forgotten after the Retention that follows. A state is never reached early, and reached at most one
// Granularity after its time, provided Advance is called that often. The newest boot of a name has the session; the last
// four that were replaced are refused for as long as the new one lives, and counted: see Duplicate.
//
// Invariants:
//   - time is a parameter and comes in no other way; equal calls give equal tables;
//   - a Ref names one life of one holder: after a release, a takeover by another boot or a reuse of the slot it renews nothing;
//   - order comes from sequence numbers and boots, never from clocks.
//
// A beat of an Alive holder swaps one word, from whatever goroutine it comes: see Pulses. Everything else belongs to the owner,
// who learns of beats when he looks. A session is made Suspect by swapping the very word that was found too old, so a beat comes
// before and counts, or after and is told that it has to go to the owner; none is lost in between. Instants are kept in
// milliseconds, rounded up.
//
// Deadlines sit in a lazy timing wheel: a session stays in
// the bucket where it was filed, and only when that bucket comes up is its true deadline computed and the session filed anew.
// No holder costs a timer or a goroutine.
//
// The package does no I/O, knows no Lease object and locks nothing: a Table belongs to one goroutine. A session takes some 110
// bytes and its name.
package session
