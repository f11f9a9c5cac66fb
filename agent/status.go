package agent

import (
	"sync"
	"time"
)

// Status is how an Agent fares.
type Status struct {
	// Connected is true while a stream is open on which the server has answered.
	Connected bool
	// Target is where the last such stream goes, or went.
	Target string
	// Targets are all streams, open ones and those being opened, ordered by target.
	Targets []TargetStatus
	// Epoch of the term of the last grant.
	Epoch int64
	// Interval and TTL are those of the last grant.
	Interval, TTL time.Duration
	// LastAnswer is when a server was last heard.
	LastAnswer time.Time
	// Streams counts the streams on which the server has answered since Run began.
	Streams int64
	// LastError is why the last stream that broke did; empty if none has.
	LastError string

	// Holders is how many there are, those that do not beat included.
	Holders int
	// Welcome is how many of them have a handle on a stream.
	Welcome int
	// Superseded holders do not beat any more, because a newer boot has their name; ordered by class and name.
	Superseded []Holder
	// Refused holders were not accepted and are introduced again, here or elsewhere; ordered by class and name.
	Refused []Refusal
}

// TargetStatus is one stream.
type TargetStatus struct {
	// Target is where it goes.
	Target string
	// Connected is true once the server has answered.
	Connected bool
	// Holders is how many beat there or wait to be introduced, and Welcome how many of them have a handle.
	Holders, Welcome int
}

// Refusal is a holder that the server does not accept, and its reason.
type Refusal struct {
	Holder Holder
	// Reason is one of the API's codes, for example UNKNOWN_CLASS, TOO_MANY_HOLDERS or NOT_LEADER.
	Reason string
}

// Status returns how the Agent fares now.
func (a *Agent) Status() Status {
	s := a.journal.read()
	a.roster.describe(&s)
	return s
}

// journal is that part of the Status which says what happened. The conversations of an Agent share it.
type journal struct {
	mu     sync.Mutex // guards status
	status Status
}

func (j *journal) read() Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.status
}

// note changes the status.
func (j *journal) note(change func(*Status)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(&j.status)
}

func (j *journal) lost(err error) {
	j.note(func(s *Status) { s.LastError = err.Error() })
}
