// Package agent keeps holders alive at a leasesvc: it is the client half of StreamHeartbeats.
//
// Promise: while Run runs and the replicas of leasesvc hold their shards, every holder that was added beats at the interval
// that the server grants to its class, at the replica that holds its shard: one stream to each such replica, all its holders of
// one class in one message for each beat. A holder begins at any replica and goes where that one says: at once, so that thousands
// are at home after two round trips; or, where that one hands its beat on, so that it lives there already, together with the
// others of its message at a random moment of half an interval. While nobody knows where a holder belongs it is
// introduced again after jittered, growing pauses. When a stream breaks, or answers stay away for two intervals, its holders
// are introduced again after a jittered pause, over a new connection, and the holders of other streams do not notice. A replica
// that paces those who come is not asked again before its time. Sessions outlive all of this on the servers.
//
// The agent has for each stream one goroutine that talks and one that listens, and one more that places holders, however many
// there are. A stream on which nobody is left is closed. Timers decide when to beat; nobody's clock is compared with anybody's.
//
// A holder whose name was taken over by a newer boot is not fought for: it stops beating and is listed in the Status. Removing
// a holder, or ending Run, lets its session expire; it releases nothing.
package agent
