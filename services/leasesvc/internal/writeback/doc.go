// Package writeback decides which Lease object is written when.
//
// Promise: every holder has one Slot, and the newest beat in it wins, so a write carries what is true when it starts and a
// backlog never grows beyond one write per holder. An object is written once per Policy.Renew while its holder beats, and not
// at all once there is nothing new to say: the silence of an expired holder stays readable in its object. An attempt that
// failed is repeated after 200 ms, doubling to 7 s, as upstream's client does.
//
// Order: objects that nobody has written yet come first, because a node without a Lease cannot be told from a dead one; then
// those which lapse first for their readers.
//
// Invariants: Plan reads and never writes; a slot has at most one write in flight; what was planned and started is not
// planned again. The package does no I/O and knows no object: indexes and instants come in, indexes and reasons go out.
package writeback
