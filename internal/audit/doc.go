// Package audit writes one record for every mutation and for every denial: when, which caller, on
// whose behalf, which method and object, the decision with its reason, and the outcome.
//
// Promises:
//   - [Log.Write] never blocks and never fails a call. A record that finds the queue full is
//     dropped and counted, and the log says later how many are missing.
//   - A record has no credentials: neither headers nor tokens are part of [Record].
//   - Names that callers choose are cut and escaped, so that no record looks like another one.
//   - One identity can write only a few denials per minute, and as many repeatable calls: takeovers
//     and releases of its own leases. The rest is counted, and written as one record, so that no
//     caller fills a disk.
//   - A file never grows beyond its limit, with its backups.
//
// Heartbeats have no records, but registrations, takeovers and releases have.
package audit
