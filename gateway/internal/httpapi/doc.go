// Package httpapi serves the gateway over HTTP: its RPCs as JSON, and the page.
//
// An API request becomes a gRPC call over an in-memory connection to a gRPC server of this package,
// so that logging, validation and error rules are those of gRPC. No header of a request reaches the
// call, least of all credentials.
//
// The server does not trust its clients. It takes only requests that change nothing, as the access
// rules of the RPCs say. It bounds headers, bodies, connections and the time of a read and of a
// write, and answers each unknown path with a JSON error. On loopback it answers only to IP
// addresses and "localhost".
package httpapi
