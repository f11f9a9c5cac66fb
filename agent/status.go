package agent

import "time"

// Status is how an Agent fares.
type Status struct {
	// Connected is true while a stream is open on which the server has answered.
	Connected bool
	// Target is where that stream goes, or went.
	Target string
	// Epoch of the term of the last grant.
	Epoch int64
	// Interval and TTL are those of the last grant.
	Interval, TTL time.Duration
	// LastAnswer is when the server was last heard.
	LastAnswer time.Time
	// Streams counts the streams on which the server has answered since Run began.
	Streams int64
	// LastError is why the last stream ended; empty if none did.
	LastError string

	// Holders is how many there are, those that do not beat included.
	Holders int
	// Welcome is how many of them have a handle on the present stream.
	Welcome int
	// Superseded holders do not beat any more, because a newer boot has their name; ordered by class and name.
	Superseded []Holder
	// Refused holders were not accepted and are introduced again after a while; ordered by class and name.
	Refused []Refusal
}

// Refusal is a holder that the server does not accept, and its reason.
type Refusal struct {
	Holder Holder
	// Reason is one of the API's codes, for example UNKNOWN_CLASS or TOO_MANY_HOLDERS.
	Reason string
}

// Status returns how the Agent fares now.
func (a *Agent) Status() Status {
	s := *a.status.Load()
	a.roster.describe(&s)
	return s
}
