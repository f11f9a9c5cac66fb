// Package fanin shares one upstream between any number of clients.
//
// A [Hub] keeps one stream to each source while a client reads, and for [Linger] after. It merges
// their reports in a [merge.View] and wakes the readers. A source is a replica, or stands for the
// replica that holds a term: then the View is exclusive, and each stream may come from another
// replica. A stream that ends is opened again after a pause that grows, and resumes where the
// source can. A source that is silent before its first bookmark has failed.
//
// A [Poller] asks one question at an interval while a client reads, and hands each answer to every
// reader whose interval has passed.
//
// No reader blocks a source or another reader: it gets the newest state when it comes back.
package fanin
