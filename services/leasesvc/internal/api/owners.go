package api

import (
	"math/rand/v2"

	"github.com/trivet-dev/trivet/internal/term"
)

// Owners are the owners of all shards at one moment, by shard number, as this replica sees them.
type Owners []term.Holding

// Address returns the gRPC address of the replica that holds a shard. It is empty if no replica
// holds it, and if this replica has claimed it and does not serve it yet: the caller must not be
// sent to itself.
func (o Owners) Address(shard int) string {
	if o[shard].Here {
		return ""
	}
	return o[shard].GRPCAddress
}

// Any returns the address of a random other replica that holds a shard, so that redirected clients
// spread; empty if there is none.
func (o Owners) Any() string {
	if len(o) == 0 {
		return ""
	}
	first := rand.N(len(o))
	for i := range o {
		if address := o.Address((first + i) % len(o)); address != "" {
			return address
		}
	}
	return ""
}
