// Package peers hands beats that came to the wrong replica on to the right one, so that a session lives while its holder is
// on the way.
//
// Promise: Offer never blocks and never waits for a network; what it took is sent to the peer within moments, or is dropped
// after a minute at the latest. Of several beats of one holder only the newest is sent. What waits is bounded, for each peer and
// by the number of peers: a peer that is slow or away costs a fixed amount of memory and nobody's beats but its own.
//
// Every beat carries how long ago it was heard here. So a beat that waited cannot make its holder look more alive than it is, but
// for the time of the call itself, which is two seconds at most.
//
// There is one connection to each peer, with one call under way on it. A peer to which nothing was offered for a minute is
// forgotten and its connection closed; so are those that have vanished, once their beats are too old.
//
// Handing on is a service and no duty: a holder whose beat is refused or dropped moves by itself, as it was told. Therefore a
// beat that the peer does not accept is not sent elsewhere, and nothing is written down.
package peers
