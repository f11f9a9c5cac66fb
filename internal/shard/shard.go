// Package shard says which shard of a service an object belongs to.
//
// Promise: Of is a constant of the wire, as the layout of a message is. All who divide the same work into the same number of
// shards agree on it, whatever their versions: otherwise two of them would work on one object, or none. It must never change;
// a new way to divide would need a new name for the terms in etcd.
//
// Invariants: no state, no I/O; the result depends on the arguments alone. Each shard gets about the same number of objects,
// however alike their names are.
//
// What it does not do: it does not know who holds a shard.
package shard

import "github.com/cespare/xxhash/v2"

// Of returns the shard, 0 to shards-1, of the object with that name in its scope: XXH64 with seed 0 over "scope/name", modulo
// the number of shards, which must be positive. Neither part may have a slash in it; then no two objects are written alike.
func Of(scope, name string, shards int) int {
	var digest xxhash.Digest
	digest.Reset()
	_, _ = digest.WriteString(scope)
	_, _ = digest.WriteString("/")
	_, _ = digest.WriteString(name)
	return int(digest.Sum64() % uint64(shards))
}
