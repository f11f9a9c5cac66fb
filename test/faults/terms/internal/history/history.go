package history

import "time"

// History is everything that is known about one run.
type History struct {
	// Shards is the number of shards, and TTL that of the sessions.
	Shards int
	TTL    time.Duration
	// End is when watching ended; the replicas were stopped only afterwards.
	End int64
	// Logs of all processes, a restarted replica being another process.
	Logs []Log
	// Versions of all registers in the order of their revisions, and every claim.
	Versions []Version
	Claims   []Claim
	// Faults that struck.
	Faults []Fault
}

// Version is one effective write, as etcd tells it.
type Version struct {
	Shard    int
	Revision int64
	Register Register
}

// Claim is the key of one term, as etcd tells it.
type Claim struct {
	Shard  int
	Holder string
	// Epoch is the revision that created the key, and Gone the one that deleted it; 0 while it exists.
	Epoch int64
	Gone  int64
}

// Fault is what was done to the replicas or to etcd.
type Fault struct {
	Kind FaultKind
	// Replica that it struck; empty where it struck etcd, and with it all.
	Replica string
	// From and To are the clock when it began and when it was over.
	From, To int64
}

// FaultKind tells apart the faults that are judged differently.
type FaultKind string

const (
	// Revocation takes a lease away from a replica that does not expect it.
	Revocation FaultKind = "revocation"
	// Outage is etcd's absence.
	Outage FaultKind = "outage"
	// Stall is a time for which the machine did not let the test run, and so perhaps not the replicas either.
	Stall FaultKind = "stall"
	// Other faults need no special judgement.
	Other FaultKind = "other"
)

// Electing is etcd's election timeout. A new leader prolongs all leases by as much.
const ElectionTimeout = time.Second

// Bound is how long a shard may be without a holder for one reason.
func (h History) Bound() time.Duration { return h.TTL + time.Second }
