// Package rpcserver is the gRPC server of every Trivet process. Limits, interceptors, errors and
// the order of a stop are the same in production and in tests.
//
// Promises:
//   - Clients need a certificate from the configured authority, except over loopback with
//     --insecure.
//   - Each failed call returns a gRPC status with exactly one ErrorInfo of domain trivet.dev.
//     Internal causes are logged and not sent.
//   - A panic ends only its own call.
//   - Messages are validated by the rules of their .proto files before a handler sees them. The
//     rules are compiled before the first connection; Serve fails if they do not compile.
//   - A request with a field that the server does not know is refused, because an ignored field
//     could be the one that makes the request harmless. So is a request with as_of_time.
//   - A call for another cluster is refused, if its metadata names the cluster.
//   - A repeated request with the same request_id gets the first answer, for ten minutes, unless
//     the process restarts.
//   - Each method has an access rule in its .proto file; Serve fails otherwise.
//   - A failed call is logged once, when it ends. Handlers do not log the errors that they return.
//   - Health is NOT_SERVING from the start until SetServing, and again before a stop.
//
// Interceptors, outermost first: metrics, logging, end of streams at a stop, translation of errors,
// recovery, checks of the request, repeated requests. Recovery is outside the checks because a rule
// may panic. It is inside the others so that metrics and logs see a panic as an error.
//
// Stop: health becomes NOT_SERVING; the listener and idle connections close; the contexts of
// streams end with the cause SHUTTING_DOWN; calls in progress finish; after the drain timeout the
// rest are cancelled.
//
// gRPC answers some requests before the interceptors, with a code but without ErrorInfo: a message
// that is too large (RESOURCE_EXHAUSTED) or malformed (INTERNAL), an unknown compression, and a
// ":path" without a leading slash (UNIMPLEMENTED). If no handler was running, there is no log line
// either. The package does no authorization and no rate limiting.
package rpcserver
