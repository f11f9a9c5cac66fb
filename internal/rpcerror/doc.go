// Package rpcerror creates and reads the errors of Trivet's RPCs.
//
// An error of this package is a gRPC status with exactly one ErrorInfo, whose domain is [Domain]
// and whose reason is a stable UPPER_SNAKE_CASE code for programs. The message is for humans and
// may change. Field violations, retry delays and metadata are further details of the same status.
//
// [ReasonOf] and [MetadataOf] unwrap errors and ignore ErrorInfo of other domains.
//
// Each service has a table of failures and reasons. All functions are pure and safe for concurrent
// use.
package rpcerror
