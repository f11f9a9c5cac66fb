package sessioncontroller

import "slices"

// ServedShards are the shards that an answer covers.
type ServedShards struct {
	// IDs are the numbers of the shards, ordered.
	IDs []int
	// Epoch is the newest epoch of their terms; 0 if there is none.
	Epoch int64
}

// Equal returns whether both are the same shards at the same epoch.
func (s ServedShards) Equal(other ServedShards) bool {
	return s.Epoch == other.Epoch && slices.Equal(s.IDs, other.IDs)
}

// servedShards returns the shards whose sessions this replica has, by number; nil for other shards.
// A shard that was claimed a moment ago has yet to hear its holders.
func (c *Controller) servedShards() []*HeldShard {
	served := slices.Clone(c.held)
	for id := range served {
		if !c.isFilled(id) {
			served[id] = nil
		}
	}
	return served
}

// stillServed returns which of the given shards have been served since, in the same term.
func (c *Controller) stillServed(since []*HeldShard) ServedShards {
	var served ServedShards
	for id, shard := range since {
		if shard != nil && shard == c.held[id] && !c.leaving[id] {
			served.IDs = append(served.IDs, id)
			served.Epoch = max(served.Epoch, shard.Epoch())
		}
	}
	return served
}
