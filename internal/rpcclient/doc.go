// Package rpcclient opens connections to Trivet's gRPC servers: certificates, keepalive, retries and limits that fit what
// rpcserver enforces.
//
// Promises: dialling is lazy and never blocks. Certificates and authorities are read again when their files change, so a
// connection made after a rotation uses what is current. A unary call that meets UNAVAILABLE is tried up to three times in
// all, unless so many fail that retries would only add to the load; streams are never retried, because only their owner
// knows what a new one must say first. A peer that vanished is noticed within about 15 seconds, idle connections included.
//
// The package chooses no server: NOT_LEADER and its address are for the caller to follow.
package rpcclient
