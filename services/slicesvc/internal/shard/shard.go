// Package shard says which shard a Service belongs to.
//
// Promise: Of is a constant of the wire, as the layout of a message is. All
// replicas that divide the work into the same number of shards agree on it,
// whatever their versions: otherwise two of them would work on one Service, or
// none. It must never change; a new way to divide would need a new name for the
// terms in etcd.
//
// Invariants: no state, no I/O; the result depends on the arguments alone. Each
// shard gets about the same number of Services, however alike their names are.
//
// What it does not do: it does not know who holds a shard.
package shard

import (
	"github.com/cespare/xxhash/v2"
	"k8s.io/apimachinery/pkg/types"
)

// Of returns the shard, 0 to shards-1, of the object with that key: XXH64 with
// seed 0 over "namespace/name", modulo the number of shards, which must be
// positive. No name has a slash in it, so no two keys are written alike.
func Of(key types.NamespacedName, shards int) int {
	var digest xxhash.Digest
	digest.Reset()
	_, _ = digest.WriteString(key.Namespace)
	_, _ = digest.WriteString("/")
	_, _ = digest.WriteString(key.Name)
	return int(digest.Sum64() % uint64(shards))
}
