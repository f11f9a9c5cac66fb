// Package shard says which shard a Service belongs to: the one that the house's rule gives its key, see internal/shard. Its
// test holds this to be a constant of the wire.
package shard

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/shard"
)

// Of returns the shard, 0 to shards-1, of the object with that key; shards must be positive.
func Of(key types.NamespacedName, shards int) int {
	return shard.Of(key.Namespace, key.Name, shards)
}
