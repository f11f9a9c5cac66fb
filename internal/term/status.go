package term

import "time"

// Status is what a replica knows about its session and about the shards of its service.
type Status struct {
	// Session is the replica's own session.
	Session SessionStatus
	// Shards has one entry for every shard, ordered by number.
	Shards []Holding
}

// SessionStatus is the state of a replica's etcd session.
type SessionStatus struct {
	// Alive says whether the replica may act now.
	Alive bool
	// Remaining is how long it may act without hearing from etcd.
	Remaining time.Duration
	// LastError is the last thing that went wrong, empty when nothing has since the session began.
	LastError string
}

// Holding says who holds a shard.
type Holding struct {
	// Shard is the shard's number.
	Shard int
	// ReplicaID is the holder; empty while nobody holds the shard.
	ReplicaID string
	// Epoch is the etcd revision of the claim; 0 while nobody holds the shard.
	Epoch int64
	// AcquireTime is when this replica learnt of the claim.
	AcquireTime time.Time
	// Here says whether this replica is the holder.
	Here bool
	// Remaining is how long the holder may act without hearing from etcd; known only where Here.
	Remaining time.Duration
	// GRPCAddress is where to reach the holder; empty when unknown.
	GRPCAddress string
}
