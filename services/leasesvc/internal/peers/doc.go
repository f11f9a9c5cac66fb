// Package peers knows the other replicas of leasesvc: which one holds a shard, and how to forward
// beats to it.
//
// Promise: Forwarder.Offer never blocks on the network. Beats that it accepts are sent within
// moments, or dropped after a minute at the latest. Of several beats of one holder only the newest
// is sent. The number of peers and the number of waiting beats for each peer are bounded, so a slow
// or absent peer costs a fixed amount of memory and delays no other peer.
//
// Each beat carries its age, so a beat that waited does not extend a session too far: the error is
// the duration of the call, which is two seconds at most.
//
// There is one connection to each peer, with one call in flight. The connection closes after a
// minute without beats.
//
// Forwarding is best effort: a holder whose beat is refused or dropped has been told to move, and
// does so by itself. A beat that the peer refuses is not sent elsewhere, and nothing is persisted.
package peers
