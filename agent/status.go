package agent

import (
	"sync"
	"time"
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
	return h.status
}

func (h *history) update(change func(*Status)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.status)
}

func (h *history) lost(err error) {
	h.update(func(s *Status) { s.LastError = err.Error() })
}
