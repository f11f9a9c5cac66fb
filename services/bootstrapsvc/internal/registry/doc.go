// Package registry keeps the etcd keys in which sidecars say how their kube-apiservers are.
//
// Key /trivet/<cluster>/apiservers/<ip>; value a small JSON object; lease the session of the replica that wrote it, so
// that the key goes with its writer. One address has one writer: a replica never overwrites the key of another one, it says so
// instead. Only where it starts does it delete the key of its own address, whoever wrote it: that is the way of a sidecar that
// was killed and comes back before its old session has lapsed. Two sidecars that are given one address by mistake cannot be
// told from that; the later one gets it, and the earlier one reports that it is taken. Sidecars that share an address on purpose
// have keys /trivet/<cluster>/apiservers/<ip>/<replica>, and none touches another's. Every write compares the revision that was
// read before it.
//
// A sidecar that stops in good order deletes its key, or writes that it left, which is then forgotten after a minute.
//
// A value that cannot be read is reported as an entry that is not ready. Elsewhere than at the own address it is never deleted,
// because a newer version may have written it, and it never makes a list fail. Unknown fields are ignored.
//
// The package keeps no state of its own and starts no goroutine. All methods are safe for concurrent use and block until
// etcd answers or their context ends; errors of theirs wrap ErrUnavailable where etcd did not answer.
package registry
