// Package api implements the services of trivet.lease: heartbeats, releases, leases and watches.
//
// Promise: a beat of a live holder on a stream costs a few loads and stores in memory, allocates
// nothing and waits for no other stream. All other beats of a message, and those with a report, go
// to the session controller in one batch. A holder whose shard another replica leads is rejected
// with the address of that replica, and its beat is forwarded there once; the other holders of the
// stream are unaffected.
//
// Registrations and new streams are rate-limited, not queued. A rejected holder keeps its session,
// and each gets another time to return. A sender that exceeds its message rate is told to slow down
// first; if it goes on, its stream ends.
//
// A handler answers from memory, except ReleaseLease, which deletes the Lease object. Errors become
// statuses in one table.
package api
