// Package mirror decides which endpoints the slices of a hand-made Endpoints object have.
//
// Promise: ReasonOf tells whether an Endpoints object is mirrored. Resolve returns the endpoints of
// each address family, grouped by their ports, as the endpointslice mirroring controller of
// kube-controller-manager (pkg/controller/endpointslicemirroring) would mirror them. pack plans the
// slices. Explain tells for one address where it comes from and why it is in no slice.
//
// Upstream's rules that are followed:
//
//   - Subsets are repacked: each port has its set of addresses, and the ports with equal sets are
//     one subset. The text of an IP and the UID of its target tell addresses apart. Of several
//     copies, the first one counts. Not ready precedes ready.
//   - Of each repacked subset, at most Limits.PerSubset addresses are mirrored, both families
//     together: ready ones first, in the order of their text.
//   - Of addresses that become the same endpoint, the last one stays in this order.
//   - The family of an address is that of its IP. The families of the Service do not count.
//
// Upstream's defects that are not followed:
//
//   - Ports are compared by value, also their appProtocol.
//   - Ports of one name are in several groups, because kube-apiserver refuses a slice with both.
//   - Limits.Spill puts the addresses above the limit into further slices.
//   - The reserved labels of an Endpoints object cause no write.
//
// An Endpoints object has at most 1,000 sets of ports and 100,000 endpoints in slices. Upstream has
// no such bound. The addresses above it count as too many.
//
// An annotation that the Endpoints object lost leaves the slice if this program or
// kube-controller-manager set it: the managed fields of the slice tell. Any other annotation stays.
// So nothing but the mirrored annotations is stored on a slice, and each of the two programs adopts
// the slices of the other one without a write.
//
// Invariants: no I/O, no clock. Inputs are never changed. The order of subsets, addresses and ports
// does not matter, except among copies of an address that differ.
package mirror
