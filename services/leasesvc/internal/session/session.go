package session

import (
	"time"
	"unique"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Class holds the times of one kind of holder.
type Class struct {
	// Name is the name of the class on the wire.
	Name string
	// Interval is the time between two beats of a holder.
	Interval time.Duration
	// Suspect is the silence after which a session is Suspect; longer than Interval.
	Suspect time.Duration
	// TTL is the silence after which a session is Expired; longer than Suspect.
	TTL time.Duration
	// Retention is how long an Expired session is kept.
	Retention time.Duration
}

// FirstInterval returns the first interval of a holder, between Interval/2 and Interval. It depends
// on the name only. So holders that register together after a takeover do not keep beating
// together.
func (c Class) FirstInterval(name string) time.Duration {
	const steps = 1024
	half := c.Interval / 2
	return half + half*time.Duration(fingerprint(name)%steps)/steps
}

// stateAfter returns the state of a session after a silence.
func (c *Class) stateAfter(silence time.Duration) State {
	switch {
	case silence < c.Suspect:
		return Alive
	case silence < c.TTL:
		return Suspect
	}
	return Expired
}

// ClassID is the index of a class in the list that was given to NewTable.
type ClassID uint8

// Key identifies a holder across its boots.
type Key struct {
	Class ClassID
	Name  string
}

// Holder is one boot of a holder.
type Holder struct {
	Key  Key
	Boot string
}

// Agent is a program that sends beats, as it describes itself. The zero Agent is not known.
type Agent struct{ Name, Version, Mode string }

// Modes of Agents. One in ModeEndpoint forwards the requests of its kubelet and writes a Lease that
// no leader acknowledges. One in ModeProbe looks at a kubelet that writes its Lease itself.
const (
	ModeEndpoint = "endpoint"
	ModeProbe    = "probe"
)

// ModeOf returns how an agent knows that its kubelet lives; "" if that is not known.
func ModeOf(agent unique.Handle[Agent]) string {
	if agent == (unique.Handle[Agent]{}) {
		return ""
	}
	return agent.Value().Mode
}

// Silence is the time since the last beat of a holder.
type Silence struct {
	Holder Holder
	For    time.Duration
}

// State is the state of a session.
type State uint8

const (
	// Gone sessions were released or have passed their Retention. The Table has no such session.
	Gone State = iota
	// Alive holders beat in time.
	Alive
	// Suspect holders have been silent for Class.Suspect.
	Suspect
	// Expired holders have been silent for Class.TTL.
	Expired
)

// Ref identifies one session of one boot. The zero Ref identifies none.
type Ref struct {
	slot, generation uint32
}

// Slot returns the index of the session's record. It is below the limit of the Table and is reused
// after the session is gone. The owner of the Table may keep further values by slot.
func (r Ref) Slot() uint32 { return r.slot }

// Outcome is the result of a beat or a registration.
type Outcome uint8

const (
	// Unknown means that the Ref identifies no session.
	Unknown Outcome = iota
	// Opened means that a session began.
	Opened
	// TookOver means that the session now belongs to another boot. Refs of the earlier boot are
	// invalid.
	TookOver
	// Recovered means that a Suspect session is Alive again, or that an Expired one is not expired
	// any more.
	Recovered
	// Renewed means that the deadline moved.
	Renewed
	// Repeated means that the sequence was not above the last one. Nothing changed.
	Repeated
	// Superseded means that another boot has the session. Nothing changed.
	Superseded
	// Full means that the Table has reached its limit. No session was opened.
	Full
)

// Accepted reports whether the holder has the session.
func (o Outcome) Accepted() bool {
	return o == Opened || o == TookOver || o == Recovered || o == Renewed || o == Repeated
}

// Session is a copy of one session.
type Session struct {
	Ref    Ref
	Holder Holder
	State  State
	// Sequence is the sequence of the last beat.
	Sequence uint64
	// Started is the time of the first beat of this boot.
	Started monotonic.Instant
	// LastBeat is when the holder was last observed to be alive: the time of the last accepted
	// beat, less the age that it reported.
	LastBeat monotonic.Instant
	// Deadline is the time at which the session expires or expired.
	Deadline monotonic.Instant
}

// Transition is one change of state for lack of beats. If To is Gone, Ref is invalid already.
type Transition struct {
	Ref      Ref
	Holder   Holder
	From, To State
}

// Counts is the number of sessions by state.
type Counts struct {
	Alive, Suspect, Expired int
}

// Total returns the number of sessions.
func (c Counts) Total() int { return c.Alive + c.Suspect + c.Expired }
