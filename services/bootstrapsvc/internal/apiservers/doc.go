// Package apiservers decides which addresses the Service default/kubernetes leads to, and what its Endpoints object and
// its EndpointSlices lack to say so.
//
// The addresses are chosen in one of four ways: [Live] takes the ready servers; [Counted] adds those that were published, until
// there are more than a number; [Static] takes what it is given; [Untouched] writes nothing at all. Whatever the way, it
// promises:
//
//   - The last address is never taken away because of what is not known. When no apiserver reports, or none of those
//     that report is ready, or a name leads nowhere, what is published stays untouched and the plan only reports.
//   - The one exception is a server that is leaving: the leader's own, at its orderly stop, or one that wrote that it left. It is
//     taken out, and nobody else when no other server of its family is ready. The last server thus leaves nothing behind,
//     unless it is to, while the address of a server whose key is merely missing survives it. A server whose next life reports
//     already does not leave, and neither does a static address.
//   - A ready server that can be reached is an endpoint. One that is not ready is none, but for those that a floor or a count
//     keeps; these were published before, and are reported. For a floor, a key that may have outlived its server counts as none.
//   - One address family, that of the Service's ClusterIP, unless both are asked for: then one slice for each, and Endpoints
//     of the first. A server of the other family is reported and left out, for one slice has one address type and a Service
//     without that family has no use for it. A family of which nobody is ready keeps what it has.
//   - One port. Where servers disagree, most win, the lowest port on a tie; the others are reported and left out.
//   - A plan, once applied, leaves nothing to write, and what it was given is never changed. Labels and annotations of
//     others stay.
//   - Whatever is decided of a server is said of it in one sentence, for people.
//
// The shape is the one kube-apiserver gives these objects itself (pkg/controlplane/reconcilers), so that a move from one to
// the other recreates nothing: the slice is named after the Service, carries no managed-by label, and the Endpoints object
// is labelled so that nobody mirrors it. The order of addresses is not a difference. Unlike there, ports are repaired at
// every pass, and an empty slice keeps its address type. The second slice, which kube-apiserver does not know, is named after its
// family and labelled as made here. Other slices of the Service are reported only.
//
// [Counted] is kube-apiserver's master-count, with two differences: a ready server is never dropped for the sake of the number,
// and who is dropped is not a matter of whose address is next but of who is known to live.
//
// A server without a sidecar counts as its own key says ([Adopt]), where such keys are read. Where they are not, it is taken out
// of the list; a kube-apiserver whose own reconciler still runs then puts its list back, every ten seconds.
//
// The package does no I/O and knows no clock.
package apiservers
