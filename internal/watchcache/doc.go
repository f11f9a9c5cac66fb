// Package watchcache keeps the newest state of each object of a collection and serves watches of
// it.
//
// A [Cache] has one writer, or several that agree, and any number of readers. A writer calls
// [Cache.Put], [Cache.Delete] and [Cache.Replace]. [Cache.Serve] is one watch call: it sends every
// object as ADDED, a bookmark, and then the changes; or, with a resume token, the changes since
// that token.
//
// Promises to a reader:
//   - It ends with the state of the cache. It may miss states of an object, never the newest one.
//   - MODIFIED and DELETED come only after ADDED of the same object. A reader that resumes at the
//     token of a list, or resumes and filters, may get ADDED for an object that it has, and DELETED
//     for an object that it does not have.
//   - A slow reader delays no writer and no other reader, and nothing queues up for it. When the
//     cache has forgotten a deletion that the reader has not seen, Serve ends with [ErrTooSlow].
//   - It can resume after every event, also in the middle of the initial events.
//
// # How it works
//
// Each change gets the next revision. The log has one record for each creation, for the last
// modification and for the deletion of each object, in the order of revisions. Records of older
// modifications are stale: readers skip them and compaction removes them. A reader is a position in
// the log, found by binary search, so an event costs each reader the same for any number of
// objects.
//
// A reader proceeds in walks. A walk (from, to] begins where the previous one ended and ends at the
// newest revision. A record in it shows the newest state of its object, not the state at its
// revision. Hence an object that is created within the walk needs no record of its modification,
// and an object that is created and deleted within the walk needs no record at all. A token has
// from, to and the position in the walk, from which follows exactly which objects the reader has.
//
// Memory: for each object its state, a map entry and two records; for each deletion that is
// remembered the last state and two records. Readers without a filter need no memory for objects;
// readers with a filter remember the names of the objects that they have.
package watchcache
