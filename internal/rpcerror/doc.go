// Package rpcerror makes and reads the errors that Trivet's RPCs return.
//
// Promise: an error made here is a gRPC status with exactly one ErrorInfo, whose domain is [Domain] and whose reason is a
// stable UPPER_SNAKE_CASE code that a program may switch on. The message is for people and may change. Field violations,
// retry pauses and metadata are further details of the same status and survive every hop that passes a status on.
//
// Readers ([ReasonOf], [MetadataOf]) look through wrapped errors and ignore ErrorInfo of other domains, so the reason of some
// library's error is never mistaken for one of ours.
//
// The package decides nothing: which failure deserves which reason is a table in each service. All functions are pure and
// safe for concurrent use.
package rpcerror
