// Package session decides which holders are alive. A holder has one session, which its heartbeats
// renew.
//
// Promise:
//   - A session is Alive while beats arrive, Suspect after its class's Suspect silence, Expired
//     after its TTL, and gone after the Retention that follows. No state is entered early. If
//     Advance is called once per Granularity, a state is entered at most one Granularity late.
//   - The newest boot of a name has the session. The last four replaced boots are rejected while
//     the current boot lives; their beats are counted, see Duplicate.
//
// Invariants:
//   - Time is a parameter. Equal calls make equal tables.
//   - A Ref names one session of one boot. After a release, a takeover by another boot or a reuse
//     of the slot it renews nothing.
//   - Order comes from sequence numbers and boots, never from clocks.
//
// A Table belongs to one goroutine, its owner. Only the beats of Alive sessions may come from any
// goroutine, through Heartbeats: such a beat is one compare-and-swap of one word. Advance makes a
// session Suspect by swapping the word that it judged, so a concurrent beat either counts or is
// rejected; no beat is lost. Instants are kept in milliseconds, rounded up.
//
// Deadlines wait in a lazy timing wheel: a beat does not move its session in the wheel. When a
// bucket fires, the current deadline is computed and the session is filed again. A session takes
// about 110 bytes and its name.
package session
