// Package fanin shares one upstream between any number of clients.
//
// A [Hub] keeps one stream to each source while a client reads, and for [Linger] after. It merges
// their reports in a [merge.View] and wakes the readers. A source is a replica, or stands for the
// replica that holds a term: then the View is exclusive, and each stream may come from another
// replica. A stream that ends is opened again after a pause that grows, and resumes where the
// source can.
//
// What a client sees of a replica that hangs:
//
//   - Before the replica's bookmark: the Hub waits for [Config].SilenceTimeout, and sends the
//     client a bookmark that names the replica as missing.
//   - Later: its items do not change. If its process does not answer the pings of package
//     rpcclient, the stream ends, and the next bookmark names the replica. A process that answers
//     pings and sends no events is not detected.
//   - Once the replica has lost its shards, the next holders report its items as modified. Items
//     that are not reported again are deleted after [merge.Hold] when its member key expires.
//
// A [Poller] asks one question at an interval while a client reads, and hands each answer to every
// reader whose interval has passed.
//
// No reader blocks a source or another reader: it gets the newest state when it comes back.
package fanin
