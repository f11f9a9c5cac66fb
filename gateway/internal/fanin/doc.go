// Package fanin watches all replicas of a service once, for however many clients.
//
// While somebody reads, and for [Linger] after, a [Hub] keeps one stream to each replica, keeps what they tell in a
// [fleet.State], and wakes the readers. A stream that ends or cannot be opened is opened again after a pause that grows to ten
// seconds; where the replica said how to resume, it resumes. A replica that is expected to tell everything and falls silent on
// the way counts as failed.
//
// A reader is never waited for: it takes the newest when it comes. [Hub.Run] owns the streams; what they tell is under a lock
// that is held for a few events at a time.
//
// What the items are, and how a stream is opened, is not this package's business.
package fanin
