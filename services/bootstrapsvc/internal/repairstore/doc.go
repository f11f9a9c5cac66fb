// Package repairstore stores in etcd what the allocation controller must keep across restarts:
// which findings are open and since when, how findings ended, which findings are ignored, the plans
// of repairs, and which repairs were begun and how far they got.
//
// Keys, below /trivet/<cluster>/:
//
//	findings/<finding>       a finding as it was last written, and how it ended
//	ignores/<finding>        the mark of a finding that is ignored
//	repairplans/<id>/plan    a plan; written once
//	repairplans/<id>/repair  the ID of the repair that was begun with the plan
//	repairs/<id>/plan        the requester, the time and all steps of a repair; written before the first step is applied
//	repairs/<id>/<step>      the result of one step
//	repairs/<id>/progress    how often the repair and its steps were tried, and the last errors
//	repairs/<id>/cancel      the caller that cancelled the repair
//	repairs/<id>/end         when the repair ended
//
// Values are JSON. Fields and parts may be added; their meaning never changes. The form does not
// depend on the messages of the API.
//
// # Invariants
//
//   - Every write is a transaction with the guard of the term in its context; without a term it is
//     rejected. So there is one writer at a time, and a replica whose term has ended changes
//     nothing.
//   - The parts of a repair and of a plan, except the progress, are written once and never changed.
//     A record therefore always shows what a step was planned to do.
//   - No plan or repair has the ID of another one, except that a repair has the ID of its plan.
//   - A repair and the mark of its plan are written in one transaction, so a plan is applied once.
//   - An unreadable value is skipped and counted. It is not deleted by a trim: a newer version may
//     have written it.
//   - Grace periods are not stored. After a restart they begin again.
//
// Methods block until etcd answers or their context ends, and are safe for concurrent use. Their
// errors wrap [ErrUnavailable] if etcd did not answer, and [guarded.ErrEtcdDenied] if it denies
// access.
package repairstore
