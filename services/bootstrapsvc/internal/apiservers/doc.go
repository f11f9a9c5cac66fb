// Package apiservers decides which kube-apiservers are ready, which addresses the Service
// default/kubernetes leads to, and how its Endpoints object and EndpointSlices must change.
//
// [Readiness] judges the probes of one server. [NewPlan] selects the desired endpoints in one of
// four ways: [Live] takes the ready servers. [Counted] also keeps published servers up to a number.
// [Static] takes the given addresses. [Untouched] writes nothing.
//
// # Promises
//
//   - Missing knowledge never removes the last address. If no server reports, no reporting server
//     is ready, or a name does not resolve, the published addresses stay and the plan only reports.
//   - The one exception is a server that leaves: the leader's own server at an orderly stop, or a
//     server whose key says that it left. Its address is removed. If no other server of its family
//     is ready, no other address is removed. The last server thus removes itself, unless
//     Policy.KeepLast is set. A server whose key is merely missing keeps its address. A server that
//     reports again does not leave, and a static address never leaves.
//   - A ready and reachable server is an endpoint. A server that is not ready is an endpoint only
//     if it was published before and a floor (Policy.MinReady) or a count keeps it; the plan
//     reports it. A floor never keeps a server whose key may have outlived it.
//   - Endpoints have one address family, that of the Service's ClusterIP. With dual stack there is
//     one slice for each family, and the Endpoints object has the first. A server of another family
//     is left out and reported. A family without a ready server keeps its addresses.
//   - Endpoints have one port. If servers disagree, the port of most servers is used, and of two
//     equally frequent ports the lower one. The remaining servers are left out and reported.
//   - An applied plan leaves nothing to write. Inputs are never changed. Foreign labels and
//     annotations stay.
//   - [ServerStatus] gives the reason for each server in one sentence.
//
// # Shape of the objects
//
// The objects have the shape that kube-apiserver gives them (pkg/controlplane/reconcilers), so that
// a change from one to the other recreates nothing. The slice is named after the Service and has no
// managed-by label. The Endpoints object is labelled so that it is not mirrored. The order of
// addresses does not matter. Unlike in kube-apiserver, every plan repairs ports, and an empty slice
// keeps its address type. The second slice, which kube-apiserver does not have, is named after its
// family and labelled as managed by Trivet. Foreign slices of the Service are only reported.
//
// [Counted] is kube-apiserver's master-count with two differences: it never drops a ready server
// because of the number, and it drops servers of unknown state first instead of the next address in
// order.
//
// A server without a sidecar counts as its master lease says ([Adopt]), where master leases are
// read. Elsewhere its address is removed. A kube-apiserver whose own reconciler still runs then
// restores its own list every ten seconds.
package apiservers
