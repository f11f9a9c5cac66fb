// Package agent keeps holders alive at a leasesvc: it is the client half of StreamHeartbeats.
//
// Promise: while Run runs and any replica of leasesvc leads, every holder that was added beats at the interval that the server
// grants, thousands of them over one stream, all in one message for each beat. When the stream breaks, the leader changes or
// answers stay away for two intervals, the agent connects again, to the replica it was told if it was told one, after a
// jittered pause, and introduces its holders again. Sessions outlive all of this on the server.
//
// The agent keeps one stream, one goroutine that talks and one that listens, however many holders it has. Its timer decides
// when to beat; nobody's clock is compared with anybody's.
//
// A holder whose name was taken over by a newer boot is not fought for: it stops beating and is listed in the Status. Removing
// a holder, or ending Run, lets its session expire; it releases nothing.
package agent
