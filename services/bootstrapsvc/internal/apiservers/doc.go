// Package apiservers decides which addresses the Service default/kubernetes leads to, and what its Endpoints object and
// its EndpointSlice lack to say so.
//
// The addresses are those of the ready apiservers. It promises:
//
//   - The last address is never taken away because of what is not known. When no apiserver reports, or none of those
//     that report is ready, what is published stays untouched and the plan only reports.
//   - The one exception is a server that is leaving: the leader's own, at its orderly stop. It takes its own address out,
//     and nobody else's when no other server is ready. The last server thus leaves nothing behind, while the address of
//     a server whose key is merely missing survives it. A server whose next life reports already does not leave.
//   - One address family, that of the Service's ClusterIP. A server of the other family is reported and left out, for one
//     slice has one address type and a Service without that family has no use for it.
//   - One port. Where servers disagree, most win, the lowest port on a tie; the others are reported and left out.
//   - A plan, once applied, leaves nothing to write, and what it was given is never changed. Labels and annotations of
//     others stay.
//
// The shape is the one kube-apiserver gives these objects itself (pkg/controlplane/reconcilers), so that a move from one to
// the other recreates nothing: the slice is named after the Service, carries no managed-by label, and the Endpoints object
// is labelled so that nobody mirrors it. The order of addresses is not a difference. Unlike there, ports are repaired at
// every pass, and an empty slice keeps its address type. Other slices of the Service are reported only.
//
// Only servers with a sidecar count. Until each has one, those without are taken out of the list; a kube-apiserver whose own
// reconciler still runs then puts its list back, every ten seconds.
//
// The package does no I/O and knows no clock.
package apiservers
