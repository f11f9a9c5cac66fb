// Package readiness turns the outcomes of probes into a verdict on one kube-apiserver.
//
// One success makes a server ready; only several failures in a row make it not ready, so that one slow answer does not
// cut pods off. A server that says nothing at all gets a time beside: it may be busy, and pods that it serves already may
// yet be served, where one that refuses connections or calls itself not ready serves nobody new. A server that was never
// probed is not ready. The package does no I/O and knows no clock.
package readiness
