// Package voice listens to the one replica that speaks for a service, for however many clients.
//
// While somebody reads, and for [Linger] after, a [Hub] keeps one stream. When it ends another one is opened, to whoever speaks
// then: soon, and where that fails after pauses that grow to two seconds. What was told stands meanwhile; that nobody speaks is told
// only once opening has failed, for a term that is handed over leaves no gap.
//
// Each stream begins a round: all that exists, a bookmark, then changes. A reader is told each round from the start, everything as
// [Added], and what the new voice does not mention as [Removed] before its bookmark: so a reader who only keeps what it is told
// ends with what there is, whichever replicas spoke in between.
//
// A reader is never waited for: states between two looks are skipped, the last one never. What is gone is remembered until every
// reader who knew of it has been told.
//
// What the items are, who may speak and how to reach it is not this package's business.
package voice
