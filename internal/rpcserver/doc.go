// Package rpcserver is the one gRPC server of every Trivet process: the same limits, the same interceptors, the same errors
// and the same way to stop, in production and in tests.
//
// Promises:
//   - Nobody gets in without a certificate from the configured authority, except over loopback with --insecure.
//   - Whatever a handler does, its caller gets a gRPC status with exactly one ErrorInfo of domain trivet.dev. A cause that is
//     not meant for the caller goes to the log, never onto the wire.
//   - A panic costs the call it happens in and nothing else.
//   - Messages are checked against the rules of their .proto files before a handler sees them. The rules are compiled before
//     the first connection is accepted; rules that do not compile keep the server from serving.
//   - A call that failed is logged once, here, when it ends; handlers do not log what they return.
//   - Health says NOT_SERVING from the start, until told otherwise, and again before a stop.
//
// Every call passes, from the outside in: metrics, logging, end (streams are told of a stop), errors (whatever comes out
// becomes a status of ours), recovery, validation, handler. Recovery sits outside validation, so that a panic inside a rule is
// caught as well, and inside the rest, so that metrics and logs see a panic as the error it is.
//
// Stopping: health turns NOT_SERVING; listener and idle connections close; the contexts of streams end with SHUTTING_DOWN as
// their cause, since a watch would never end by itself; calls in progress finish; whatever still runs after the drain timeout is cut.
//
// Not promised: gRPC answers some requests by itself, before or past the interceptors. A message that is too large
// (RESOURCE_EXHAUSTED) or no protobuf message (INTERNAL), an unknown compression and a ":path" without its leading slash
// (UNIMPLEMENTED) get a code but no ErrorInfo, and where no handler was running no log line. The package authorizes nobody and
// limits no rates.
package rpcserver
