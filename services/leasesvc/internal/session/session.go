package session

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Class is the rule for one kind of holder.
type Class struct {
	// Name is what holders call their class.
	Name string
	// Interval is the time between two beats of one holder.
	Interval time.Duration
	// Suspect is the silence after which a holder is Suspect; longer than Interval.
	Suspect time.Duration
	// TTL is the silence after which it is Expired; longer than Suspect.
	TTL time.Duration
	// Retention is how long an Expired session is remembered.
	Retention time.Duration
}

// FirstInterval is what the holder gets as its first interval: between half of Interval and the whole, chosen by its name, so
// that holders which arrive together after a takeover do not beat together ever after.
func (c Class) FirstInterval(name string) time.Duration {
	const steps = 1024
	half := c.Interval / 2
	return half + half*time.Duration(fingerprint(name)%steps)/steps
}

// ClassID is the place of a class in the list that the Table was made from.
type ClassID uint8

// Key names a holder.
type Key struct {
	Class ClassID
	Name  string
}

// Holder is one life of a key.
type Holder struct {
	Key  Key
	Boot string
}

// Silence says for how long a holder has not been heard.
type Silence struct {
	Holder Holder
	For    time.Duration
}

// State is what is believed of a holder.
type State uint8

const (
	// Gone is the state of a session that was released or forgotten; a live session never has it.
	Gone State = iota
	// Alive holders beat in time.
	Alive
	// Suspect holders have been silent for longer than their class allows, and may still come back.
	Suspect
	// Expired holders have been silent for the whole TTL.
	Expired
)

// Ref names one life of a session. The zero Ref names none.
type Ref struct {
	slot, generation uint32
}

// Slot is the index of the session's record: below the Table's limit, and free for another session once this one is gone.
// It lets an owner keep arrays of its own beside the Table.
func (r Ref) Slot() uint32 { return r.slot }

// Outcome says what a beat or an introduction did.
type Outcome uint8

const (
	// Unknown: the Ref names no session.
	Unknown Outcome = iota
	// Opened: a session began.
	Opened
	// TookOver: a session went on under a new boot, and older Refs to it ended.
	TookOver
	// Recovered: a Suspect or Expired session is Alive again.
	Recovered
	// Renewed: the deadline moved.
	Renewed
	// Repeated: the sequence was not above the last one, so nothing changed.
	Repeated
	// Superseded: another boot has the session, so nothing changed.
	Superseded
	// Full: the Table's limit is reached, so no session was opened.
	Full
)

// Accepted tells whether the holder has the session.
func (o Outcome) Accepted() bool {
	return o == Opened || o == TookOver || o == Recovered || o == Renewed || o == Repeated
}

// Session is a copy of what the Table knows of one holder.
type Session struct {
	Ref    Ref
	Holder Holder
	State  State
	// Sequence of the last beat.
	Sequence uint64
	// Started is when this boot was first heard.
	Started monotonic.Instant
	// LastBeat is when the last accepted beat came.
	LastBeat monotonic.Instant
	// Deadline is when the session expires, or expired.
	Deadline monotonic.Instant
}

// Transition is one step that silence made. To is Gone when the session was forgotten, and then its Ref is dead already.
type Transition struct {
	Ref      Ref
	Holder   Holder
	From, To State
}

// Counts is how many sessions there are in each state.
type Counts struct {
	Alive, Suspect, Expired int
}

// Total is how many sessions there are.
func (c Counts) Total() int { return c.Alive + c.Suspect + c.Expired }
