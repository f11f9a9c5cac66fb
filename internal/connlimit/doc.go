// Package connlimit limits the connections of a listener before and after their TLS handshakes, so
// that one client cannot keep the others out.
//
// A [Limiter] counts connections in all, of each address and of each identity. A new connection has
// a handshake in progress until its identity is known. One address may have a quarter of the
// handshakes and of the rate; further connections of it are closed at once, without a handshake.
// Above the rate of all addresses together, new connections wait to be accepted. So they do while
// too many handshakes are in progress or wait to compute; after three seconds they are closed.
// Handshakes compute on half of the processors at most, and those of one address one at a time,
// with rests.
//
// Refusing a connection costs the process more than the client. On Linux, the kernel therefore
// ignores an address for a tenth of a second when the process has refused too many of its
// connections. Clients behind the address repeat their first packet, and its limits admit as many
// connections as before.
//
// The identity is the common name of the client's certificate. Clients without a certificate count
// together if they have the same address. For the limits of an address, IPv6 addresses with the
// same first 64 bits count as one.
//
// Clients without a certificate may have a quarter of all connections, and handshakes another one,
// so that half of them are left to identities. A connection gets an identity when a bearer token is
// accepted on it ([Limiter.Known]). Without one it ends ten seconds after its handshake, whatever
// it calls, or when too many newer ones have none either. So a client with a token has as long to
// use it as a quarter of the connections takes to be opened at the full rate, two seconds by
// default.
//
// [Limiter.Credentials] also ends a connection that floods its server with HTTP/2 control frames.
// gRPC bounds the memory that such frames need, and the pings, but neither resets nor settings.
// Calls of one identity above a rate wait, together with all other frames of its connections.
//
// The memory is bounded by the number of open connections. Nothing runs in the background but
// timers: while the kernel ignores an address, and for a connection without an identity.
package connlimit
