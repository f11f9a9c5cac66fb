// Package repairstore keeps in etcd what an audit must not forget: which findings are open and since when, which have ended and
// how, and which repairs were begun and how far they came.
//
// Keys, below /trivet/<cluster>/:
//
//	findings/<finding>    a finding as it was written last, and how it ended
//	repairs/<id>/plan     who asked for a repair, when, and all its steps; written before the first of them is made
//	repairs/<id>/<step>   what came of one step
//	repairs/<id>/end      when the repair ended
//
// Values are JSON. Fields may be added; their meaning never changes.
//
// # Invariants
//
//   - Every write is a transaction with the guard of the term that its context carries; without a term it is refused. So there
//     is one writer at a time, and one that was deposed changes nothing.
//   - The parts of a repair are written once and never changed: what a step was meant to do cannot be rewritten after the fact.
//   - A value that cannot be read is skipped and counted, and is not deleted by a trim: a newer version may have written it.
//   - What ripens is not kept. After a restart it must be seen anew, and for as long as the first time.
//
// The package keeps no state of its own and starts no goroutine. Methods block until etcd answers or their context ends, and
// are safe for concurrent use. Their errors wrap [ErrUnavailable] where etcd did not answer.
package repairstore
