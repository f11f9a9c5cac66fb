package term

import (
	"errors"
	"fmt"
	"time"
)

// Status is a replica's view of its session and of the shards of its service.
type Status struct {
	// Session is the replica's own session.
	Session SessionStatus
	// Shards has one entry for every shard, ordered by number.
	Shards []ShardStatus
	// Unready are the ids of the unready members, ordered. It may include this replica. They get no
	// shards while other members are ready.
	Unready []string
}

// SessionStatus is the state of a replica's etcd session.
type SessionStatus struct {
	// Alive says whether the replica may act now.
	Alive bool
	// Remaining is how long the replica may act without an answer from etcd.
	Remaining time.Duration
	// TTL is how long etcd keeps the keys of this replica after it has vanished: as granted, which
	// may be longer than asked for. 0 without a session.
	TTL time.Duration
	// LastError is why the replica cannot join, renew, watch or claim now, or why it ranks behind
	// ready members. It is empty if there is no such reason.
	LastError string
}

// ShardStatus is the state of one shard.
type ShardStatus struct {
	// Shard is the shard's number.
	Shard int
	// ReplicaID is the leader; empty while the shard is vacant.
	ReplicaID string
	// Epoch is the etcd revision of the claim; 0 while the shard is vacant.
	Epoch int64
	// AcquireTime is when this replica learned of the claim.
	AcquireTime time.Time
	// Here says whether this replica is the leader. It is false as soon as the session has ended.
	Here bool
	// Remaining is how long the leader may act without an answer from etcd. It is known only if
	// Here, and 0 while the shard is being released.
	Remaining time.Duration
	// GRPCAddress is the leader's gRPC address; empty if unknown.
	GRPCAddress string
	// ReleaseTime is when this replica learned that the shard is vacant; zero while it is held.
	ReleaseTime time.Time
	// Move is the shard's move to another replica; known only if Here.
	Move Move
}

// Move is the state of a shard's move from its leader to another replica.
type Move struct {
	// State is Staying in the zero value.
	State MoveState
	// To is the replica that should hold the shard. It is empty if the leader stops or the body has
	// failed.
	To string
	// Since is when the state began.
	Since time.Time
}

// MoveState is a stage of a move.
type MoveState int

const (
	// Staying shards do not move.
	Staying MoveState = iota
	// Waiting shards will move when the budget of moves allows; their bodies run.
	Waiting
	// Draining shards have an ended term; their keys are deleted when their bodies have returned.
	Draining
)

// snapshot is the state that Run published last. It is immutable. Remaining times are computed when
// it is read.
type snapshot struct {
	at      time.Time // when it was published; zero while Run does not run
	session *session  // nil while not joined
	shards  []shardState
	unready []string
	problem string // the present problem outside the session
	stuck   string // the bodies that ignore the end of their terms
	ending  []endingBody
}

// shardState is a ShardStatus without the fields that depend on the time.
type shardState struct {
	leader  string
	epoch   int64
	since   time.Time
	address string
	vacated time.Time
	term    *Term // nil unless this replica holds the shard
	move    Move
}

func (s *snapshot) status() Status {
	status := Status{Shards: make([]ShardStatus, 0, len(s.shards)), Unready: s.unready}
	status.Session = s.sessionStatus()
	for number, state := range s.shards {
		h := ShardStatus{
			Shard: number, ReplicaID: state.leader, Epoch: state.epoch,
			AcquireTime: state.since, GRPCAddress: state.address, ReleaseTime: state.vacated,
		}
		if state.term != nil && status.Session.Alive {
			h.Here = true
			h.Remaining, h.Move = state.term.Remaining(), state.move
		}
		status.Shards = append(status.Shards, h)
	}
	return status
}

func (s *snapshot) sessionStatus() SessionStatus {
	status := SessionStatus{LastError: s.problem}
	if s.session == nil {
		return status
	}
	status.Remaining, status.TTL = s.session.lease.Remaining(), s.session.ttl
	status.Alive = status.Remaining > 0
	if err := s.session.failure(); err != nil {
		status.LastError = err.Error()
	}
	return status
}

// runStall is the time without a snapshot after which the goroutine of Run counts as stuck. It
// publishes after each request to etcd or a few, and each has a timeout of seconds.
const runStall = time.Minute

// endingBody is a body that has not returned since the end of its term.
type endingBody struct {
	shard int
	epoch int64
	ended time.Time
	cause error // of the end of the term
}

// checkAlive compares times when it is called, so a replica that no longer publishes is found, too.
func (s *snapshot) checkAlive(now time.Time, drainTimeout time.Duration) error {
	if s.at.IsZero() {
		return nil
	}
	var problems []error
	if silent := now.Sub(s.at); silent > runStall {
		problems = append(problems, fmt.Errorf("the candidate for terms has not made a step for %s", silent.Round(time.Second)))
	}
	for _, body := range s.ending {
		if since := now.Sub(body.ended); since > drainTimeout {
			problems = append(problems, fmt.Errorf("the body of shard %d at epoch %d has not returned for %s after the end of its term (%w); "+
				"no other replica can take the shard", body.shard, body.epoch, since.Round(time.Second), body.cause))
		}
	}
	return errors.Join(problems...)
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
