// Package writeback decides which Lease object is written when.
//
// Promise: every holder has one slot, and its newest beat is asked for when a write starts, so a write carries what is true
// then and a backlog never grows beyond one write per holder. How often an object is written is its Policy's matter; once
// there is nothing new to say it is not written at all. An attempt that failed is repeated after 200 ms, doubling to 7 s, as
// upstream's client does, and keeps its place among the others.
//
// Order: what changed between life and death first, then objects that nobody has written yet, because a node without a Lease
// cannot be told from a dead one; then those which lapse first for their readers. Every fourth start is for the latter while
// any of them is due, and who failed goes behind those of its kind who became due meanwhile, so no renewal starves. First writes wait for
// as long as there are transitions.
//
// Spread: the period of a holder is longer or shorter than the next one's by a few hundredths, chosen by its phase, and after
// a write that was hurried, be it the first, or one that brings a holder back, or one that is late by half the period, the next
// falls anywhere within the period. So a crowd that arrived together disperses.
//
// Invariants: a slot has at most one write in flight. The cost of Start follows what is due, not how many slots there are: they
// wait in the buckets of a wheel, and nobody tells it about beats. A slot is 40 bytes. The package does no I/O, reads no clock
// and knows no object: indexes and instants come in, indexes and reasons go out. A Book belongs to one goroutine.
package writeback
