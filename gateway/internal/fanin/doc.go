// Package fanin reads watches and questions that many readers share: one stream to each source, or
// one poller, for any number of readers.
//
// A [Hub] keeps one stream to each replica, or one stream to the replica that leads, and merges
// them into a cache that readers follow. Streams are open while there are readers, and for [Linger]
// after. Then the cache is dropped, and resume tokens of its readers expire.
//
// A stream that ends is opened again with its last resume token. A source whose stream cannot be
// opened, is silent or answers for another replica is missing until its next bookmark; its items
// stay. A source delays new readers only until its silence is a failure, and never other sources.
//
// A [Poller] asks a question for all readers that are due.
package fanin
