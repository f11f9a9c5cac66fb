// Package rpcclient opens connections to Trivet's gRPC servers, with certificates, keepalive,
// retries and limits that match rpcserver.
//
// Dial never blocks. Certificates and authorities are reloaded when their files change. A unary
// call that fails with UNAVAILABLE is tried up to three times, unless so many calls fail that
// retries are throttled. Streams are not retried, because only the caller knows their first
// message. A vanished peer is detected within about 15 s, also on idle connections.
//
// The package does not follow NOT_LEADER; the caller connects to the address in the error.
package rpcclient
