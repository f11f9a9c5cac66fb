package term

import (
	"errors"
	"fmt"
	"time"
)

// Status is what a replica knows about its session and about the shards of its service.
type Status struct {
	// Session is the replica's own session.
	Session SessionStatus
	// Shards has one entry for every shard, ordered by number.
	Shards []Holding
	// Unready are the ids of the service's members, this one included, that have told the others that they cannot do the
	// work of a shard, ordered. They get none while there are others.
	Unready []string
}

// SessionStatus is the state of a replica's etcd session.
type SessionStatus struct {
	// Alive says whether the replica may act now.
	Alive bool
	// Remaining is how long it may act without hearing from etcd.
	Remaining time.Duration
	// LastError is what keeps the replica from joining, renewing, following or claiming now, or why others come first when
	// shards are claimed; empty when nothing does.
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
	// Here says whether this replica is the holder. It is false as soon as the session has ended.
	Here bool
	// Remaining is how long the holder may act without hearing from etcd; known only where Here, and 0 while the shard is
	// being given up.
	Remaining time.Duration
	// GRPCAddress is where to reach the holder; empty when unknown.
	GRPCAddress string
	// ReleaseTime is when this replica learnt that nobody holds the shard any more, or that nobody did when it joined; zero
	// while somebody does.
	ReleaseTime time.Time
	// Move is the shard's way to another replica; known only where Here.
	Move Move
}

// Move says how far a shard is on its way from its holder to another replica.
type Move struct {
	// State says how far; the zero value is that the shard stays.
	State MoveState
	// To is the replica that is to hold the shard. It is empty while the holder gives it up for whoever comes, because it
	// stops or its body has failed.
	To string
	// Since is when the state began.
	Since time.Time
}

// MoveState is how far a move is.
type MoveState int

const (
	// Staying: the shard is not to move.
	Staying MoveState = iota
	// Waiting: the shard is to move when its turn comes; its body still runs.
	Waiting
	// Draining: the body has been told to return, and the shard's key is deleted once it has.
	Draining
)

// snapshot is what Run last published. It is immutable; what depends on the time is worked out when it is read.
type snapshot struct {
	session *session // nil while not joined
	shards  []shardState
	unready []string
	problem string // what goes wrong at present outside the session
	stuck   string // which bodies ignore the end of their terms
}

// shardState is a Holding but for what depends on the time.
type shardState struct {
	holder  string
	epoch   int64
	since   time.Time
	address string
	vacated time.Time
	term    *Term // this replica's own, nil otherwise
	move    Move  // of that term
}

func (s *snapshot) status() Status {
	status := Status{Shards: make([]Holding, 0, len(s.shards)), Unready: s.unready}
	status.Session = s.sessionStatus()
	for number, state := range s.shards {
		holding := Holding{
			Shard: number, ReplicaID: state.holder, Epoch: state.epoch,
			AcquireTime: state.since, GRPCAddress: state.address, ReleaseTime: state.vacated,
		}
		if state.term != nil && status.Session.Alive {
			holding.Here = true
			holding.Remaining, holding.Move = state.term.Remaining(), state.move
		}
		status.Shards = append(status.Shards, holding)
	}
	return status
}

func (s *snapshot) sessionStatus() SessionStatus {
	status := SessionStatus{LastError: s.problem}
	if s.session == nil {
		return status
	}
	status.Remaining = s.session.lease.Remaining()
	status.Alive = status.Remaining > 0
	if err := s.session.failure(); err != nil {
		status.LastError = err.Error()
	}
	return status
}

func (s *snapshot) check() error {
	if s.stuck != "" {
		return errors.New(s.stuck)
	}
	if status := s.sessionStatus(); !status.Alive {
		return fmt.Errorf("no session with etcd: %s", status.LastError)
	}
	return nil
}
