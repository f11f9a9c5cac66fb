// Package repairstore stores in etcd what the allocation controller must keep across restarts:
// which findings are open and since when, how findings ended, and which repairs were begun and how
// far they got. It also encodes the token that names a repair plan.
//
// Keys, below /trivet/<cluster>/:
//
//	findings/<finding>    a finding as it was last written, and how it ended
//	repairs/<id>/plan     the requester, the time and all steps of a repair; written before the first step is applied
//	repairs/<id>/<step>   the result of one step
//	repairs/<id>/end      when the repair ended
//
// Values are JSON. Fields may be added; their meaning never changes.
//
// # Invariants
//
//   - Every write is a transaction with the guard of the term in its context; without a term it is
//     rejected. So there is one writer at a time, and a replica whose term has ended changes
//     nothing.
//   - The parts of a repair are written once and never changed, so a record always shows what a
//     step was planned to do.
//   - An unreadable value is skipped and counted. It is not deleted by a trim: a newer version may
//     have written it.
//   - Grace periods are not stored. After a restart they begin again.
//   - A token is not stored and grants nothing. The controller plans again from the token's
//     findings and compares. A made-up token therefore does no more than a plan that its author may
//     request. One plan has one token, and one token has one encoding, so that its ID tells whether
//     it was applied before.
//
// Methods block until etcd answers or their context ends, and are safe for concurrent use. Their
// errors wrap [ErrUnavailable] if etcd did not answer.
package repairstore
