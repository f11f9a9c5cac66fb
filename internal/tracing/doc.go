// Package tracing exports OpenTelemetry traces of one process over OTLP gRPC, if it is configured.
//
// # Invariants
//
//   - Without an endpoint nothing is created: [New] returns nil, and a nil *Tracing and the zero
//     [Tracer] do nothing and allocate nothing.
//   - No caller waits for the collector. Spans that have ended wait in a queue of fixed size; a
//     span without a place in it is dropped and counted.
//   - Heartbeats, health checks and reflection are not traced, and no request to kube-apiserver is
//     traced unless it belongs to a span. So watches, lists and writes of Leases are not traced.
//   - A remote parent is accepted from Trivet's own servers only. The trace of another caller is
//     linked: a client decides neither what is sampled nor which trace it is in.
//   - Spans have names, versions and counts, but no contents of objects.
package tracing
