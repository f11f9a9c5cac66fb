// Package rpcserver is the gRPC server of every Trivet process. Limits, interceptors, errors and
// the order of a stop are the same in production and in tests.
//
// Promises:
//   - A caller has a client certificate of the configured authority or a bearer token, except over
//     loopback with --insecure. Without either it may ask for health, and all other calls get
//     NOT_AUTHENTICATED, those of unknown methods too.
//   - Limits and rights are decided before a request is decoded: the limits of the caller, what of
//     its right needs no request, the length of the message for this caller and method, the right
//     to the object that the encoded request names, and the number of items in each list. A caller
//     without the right has no byte decoded. Decoding needs at most [maxExpansion] times the limit
//     of a message, and one call sixteen times.
//   - A watch ends when the certificate of its caller ends, its token is revoked or its right is
//     taken away. A review that fails ends nothing. Messages on an open heartbeat stream cost
//     nothing here: its handler decides.
//   - Each mutation and each denial has one audit record. No log has a header, and what looks like
//     a token is removed from names.
//   - Each failed call returns a gRPC status with exactly one ErrorInfo of domain trivet.dev.
//     Internal causes are logged and not sent.
//   - A panic ends only its own call.
//   - Unknown methods have one quota for each caller, and only the beginnings of their names are
//     logged, at debug level.
//   - Messages are validated by the rules of their .proto files before a handler sees them. The
//     rules are compiled before the first connection; Serve fails if they do not compile.
//   - A request with a field that the server does not know is refused, because an ignored field
//     could be the one that makes the request harmless. So is a request with as_of_time.
//   - A call for another cluster is refused, if its metadata names the cluster.
//   - A repeated request with the same request_id gets the first answer, for ten minutes, unless
//     the process restarts.
//   - Each method has an access rule in its .proto file and limits in package quota; Serve fails
//     otherwise.
//   - A failed call is logged once, when it ends. Handlers do not log the errors that they return.
//   - Health is NOT_SERVING from the start until SetServing, and again before a stop.
//
// Interceptors, outermost first: the caller, metrics, logging, end of streams at a stop,
// translation of errors, recovery, the guard (limits of the caller, its right, decoding, audit
// record), checks of the request, repeated requests. The caller is found first so that the log
// names it. Recovery is outside the checks because a rule may panic. It is inside metrics and logs
// so that these see a panic as an error.
//
// Stop: health becomes NOT_SERVING; the listener and idle connections close; the contexts of
// streams end with the cause SHUTTING_DOWN; calls in progress finish; after the drain timeout the
// rest are cancelled.
//
// gRPC answers some requests before the interceptors, with a code but without ErrorInfo: a message
// that is too large (RESOURCE_EXHAUSTED) or malformed (INTERNAL), an unknown compression, and a
// ":path" without a leading slash (UNIMPLEMENTED). If no handler was running, there is no log line
// either. A request above the limit of its caller is read, up to --max-recv-bytes, and not decoded.
package rpcserver
