// Package httpapi serves the gateway over HTTP: its RPCs as JSON, and the page.
//
// Every API request becomes a gRPC call over an in-memory connection to a gRPC server of this package's own, so that
// metrics, logging, validation and error rules are the same as for any gRPC caller. No header of a request reaches that
// call, least of all credentials.
//
// The server is made for strangers: it reads only, refuses bodies, bounds headers, connections and the time a reader may
// take, and answers everything unknown with a JSON error. On loopback it answers only to IP addresses and "localhost".
package httpapi
