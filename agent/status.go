package agent

import (
	"maps"
	"sync"
	"time"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// Status is the state of an Agent at one moment.
type Status struct {
	// Connected is true while a server answers on a stream.
	Connected bool
	// Target is the target of the last response.
	Target string
	// Targets are all streams, also those without a response yet, ordered by target.
	Targets []TargetStatus
	// Epoch, Interval and TTL are those of the last grant.
	Epoch         int64
	Interval, TTL time.Duration
	// LastAnswer is the time of the last response.
	LastAnswer time.Time
	// Streams counts the streams with a response since Run began.
	Streams int64
	// LastError is why the last broken stream ended; empty if none has.
	LastError string
	// Beats and Registrations count what was sent, Answers the responses by their directive, and
	// LostStreams the streams that broke, since Run began.
	Beats, Registrations, LostStreams uint64
	Answers                           map[string]uint64
	// Unacknowledged counts the calls of Config.Unacknowledged that have returned, and
	// UnacknowledgedFailed those that failed.
	Unacknowledged, UnacknowledgedFailed uint64
	// LastSeen is the oldest ObservedTime of the last reports of all holders: for one holder, when
	// it was last seen. It is zero without such a report.
	LastSeen time.Time

	// Holders is the number of holders, including those that do not beat.
	Holders int
	// Registered is how many holders have a handle on a stream.
	Registered int
	// Superseded holders do not beat, because another boot has their name. They ask again when that
	// boot can have ended. Ordered by class and name.
	Superseded []Holder
	// Rejected holders were not accepted and register again, here or elsewhere; ordered by class
	// and name.
	Rejected []Rejection
}

// TargetStatus is the state of one stream.
type TargetStatus struct {
	// Target is the address.
	Target string
	// Connected is true once the server has responded.
	Connected bool
	// Holders is how many holders beat or register there, and Registered how many of them have a
	// handle.
	Holders, Registered int
}

// Rejection is a holder that the server does not accept.
type Rejection struct {
	Holder Holder
	// Reason is a reason of the API, for example UNKNOWN_CLASS, NOT_AUTHORIZED or NOT_LEADER.
	Reason string
}

// Status returns the current state.
func (a *Agent) Status() Status {
	s := a.history.read()
	a.router.describe(&s)
	return s
}

// history is the part of the Status that says what has happened. It is safe for concurrent use.
type history struct {
	mu     sync.Mutex // guards status
	status Status
}

func (h *history) read() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.status
	s.Answers = maps.Clone(s.Answers)
	return s
}

func (h *history) update(change func(*Status)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.status)
}

func (h *history) lost(err error) {
	h.update(func(s *Status) { s.LastError, s.LostStreams = err.Error(), s.LostStreams+1 })
}

func (s *Status) count(directive leasev1.StreamHeartbeatsResponse_Directive) {
	if s.Answers == nil {
		s.Answers = map[string]uint64{}
	}
	s.Answers[directiveName(directive)]++
}
