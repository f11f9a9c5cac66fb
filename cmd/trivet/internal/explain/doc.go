// Package explain is `trivet explain`: why something is as it is, as a chain in which each link follows from the one before.
//
// The first line answers the question; the first broken link, where the chain says to look, stands out. The exit code is 0 when
// the chain is whole, 1 when it is broken or the Node is not well, and 2 when a link could not be looked at, or nothing could be
// had. A doubtful link is none of these: nothing follows from it yet.
package explain
