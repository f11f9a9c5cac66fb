// Package writeback decides which Lease object is written when, what the Lease says, and how many
// are written at a time.
//
// Promise:
//   - Each holder has one slot with at most one write in flight. The newest beat is read when a
//     write starts. So a backlog has at most one write for each holder, and no write is out of date
//     when it starts.
//   - The Policy sets how often a Lease is written. A Lease that shows the newest state is not
//     written.
//   - A failed write is repeated after 200 ms, doubling to 7 s, as upstream's client does.
//
// Order: transitions (expired, recovered) come before first writes, because the first writes after
// a takeover must not delay them. First writes come before renewals, because a Node without a Lease
// looks dead. Renewals come in the order in which their Leases lapse. Every fourth start is a
// renewal if one is due, and a failed write goes behind the due writes of its kind, so renewals do
// not starve. First writes wait while transitions are due.
//
// Spread: the phase of a holder makes its period a few hundredths longer or shorter. After an early
// or late write, the next one falls anywhere within the period. So holders that register together
// are soon written at different times.
//
// Schedule is the plan of writes; it takes no notice of single beats, and the cost of Start follows
// the number of due slots. A slot takes 40 bytes. NewLease and UpdatedLease make the objects field
// by field as upstream's lease client does (k8s.io/component-helpers/apimachinery/lease, v0.37.1),
// with these additions:
//   - The Lease of a Node always has an owner reference with the UID of the Node.
//   - The renewTime never goes back, whatever clocks say: it advances by at least a microsecond,
//     because readers take any advance for a beat.
//   - The Lease of an expired holder reads as lapsed. Its renewTime is not later than the last
//     beat.
//   - An update sets renewTime and leaseDurationSeconds, and holderIdentity if there is none. It
//     keeps all else.
//   - A Lease that names another holder is never changed.
//
// ConcurrencyLimit adapts the number of concurrent writes to the kube-apiserver (AIMD).
//
// The package does no I/O and reads no clock. A Schedule belongs to one goroutine.
package writeback
