// Package apply carries out planned changes of EndpointSlices on a
// kube-apiserver, and reads slices from it as they are.
//
// Promise: an update names the resourceVersion, and a deletion resourceVersion
// and UID, of the slice the plan was made from, so that a plan from an old view
// is refused with ErrConflict instead of carried out. A creation names its
// slice, so that a second one is refused likewise. What Get and List return is
// not older than the call.
//
// Cost: the kube-apiserver is asked to answer a write with the metadata alone.
// The endpoints are known, for they were just sent, and most of what a write
// costs besides is to encode and decode them once more. A slice that somebody
// changes on its way in, as a mutating webhook may, is therefore kept as it was
// sent until a watch or a list shows another version of it.
//
// It decides nothing, keeps no state and repeats no write: one that is refused with
// a Retry-After fails with an error from which RetryAfter tells the pause, if its
// client was made by kubeconn.Prompt.
// Whether this process may write at all is decided by the client it is given,
// whose transport refuses writes outside a held term.
package apply
