// Package httpapi serves the gateway over HTTP: its RPCs as JSON, and the page.
//
// Limits and rights of a caller are decided before a body is read, and the length and the number of
// values of a body before it is decoded. An API request then becomes a gRPC call over an in-memory
// connection to a gRPC server of this package, so that rights, logging, validation and error rules
// are those of gRPC. The call has the caller of the request. No header of a request reaches the
// call, least of all credentials.
//
// The server does not trust its clients. It answers only to known callers, except for health, and
// refuses what a browser sends for another site. It bounds headers, bodies, connections and the
// time of a read and of a write, and answers each unknown path with a JSON error.
//
// Without certificates it knows no caller. It then serves loopback only, answers only to IP
// addresses and "localhost", and takes only requests that change nothing.
package httpapi
