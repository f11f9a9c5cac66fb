// Package shard maps an object to a shard of a service.
//
// Of is part of the protocol between replicas and must not change: replicas of all versions must
// agree on it, or two replicas would work on one object, or none. Another mapping would need new
// term keys in etcd.
//
// The package has no state and no I/O. Shards get about the same number of objects, even if names
// are similar.
package shard

import "github.com/cespare/xxhash/v2"

// Of returns the shard, 0 to shards-1, of an object: XXH64 with seed 0 over "scope/name", modulo
// shards, which must be positive. scope and name must not contain a slash, so that two objects
// never have the same input.
func Of(scope, name string, shards int) int {
	var digest xxhash.Digest
	digest.Reset()
	_, _ = digest.WriteString(scope)
	_, _ = digest.WriteString("/")
	_, _ = digest.WriteString(name)
	return int(digest.Sum64() % uint64(shards))
}
