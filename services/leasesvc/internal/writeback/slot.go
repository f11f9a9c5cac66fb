package writeback

import (
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// State says how an object stands.
type State uint8

const (
	// Idle slots belong to no holder.
	Idle State = iota
	// Pending: no write has succeeded in this term.
	Pending
	// Written: the last attempt succeeded.
	Written
	// Retrying: the last attempt failed.
	Retrying
	// NoOwner: the object has nobody to belong to, so it is not written.
	NoOwner
)

// Reason says why an object is written.
type Reason uint8

const (
	// First: nothing is known of the holder's object in this term.
	First Reason = iota
	// Renewal: by its policy the object shall show a newer beat.
	Renewal
	// Expired: the holder is silent, and its object says otherwise.
	Expired
	// Recovered: the holder is back, and its object says otherwise.
	Recovered
	reasons
)

// String returns the reason's stable name.
func (r Reason) String() string {
	if r < reasons {
		return [...]string{"first", "renewal", "expired", "recovered"}[r]
	}
	return "unknown"
}

// Reasons are all there are.
func Reasons() []Reason { return []Reason{Expired, Recovered, First, Renewal} }

// shown is what an object tells its readers.
type shown uint8

const (
	// doubtful objects may say one thing or the other: a write was tried, or they lapsed by themselves.
	doubtful shown = iota
	living
	dead
)

// place says where a slot waits.
type place uint8

const (
	nowhere place = iota
	waiting       // in the wheel, until it is due
	urgent        // in the queue of transitions and first writes
	regular       // in the queue of renewals
)

// slot is what there is to write for one holder. The zero slot is Idle.
type slot struct {
	// carried is the beat that the object carries; before anything is known of the object, when the slot was opened.
	carried monotonic.Instant
	// due is when the next write may start.
	due monotonic.Instant
	// next and previous link the slots of a bucket of the wheel; in a queue, next is the place there.
	next, previous uint32
	bucket         uint16
	phase          uint16
	failures       uint16 // since the last success; stays at the highest number it can hold
	policy         uint8
	state          State
	reason         Reason // of the next write, or of the one in flight, or else of the last
	place          place
	shows          shown
	marks          marks
}

// marks are facts about a slot, one bit each.
type marks uint8

const (
	// known objects were written or adopted in this term.
	known marks = 1 << iota
	// silent holders are expired.
	silent
	// inFlight is set between the start of a write and its end.
	inFlight
	// held slots start no write until they are let go.
	held
)

func (s *slot) is(m marks) bool { return s.marks&m != 0 }

// wants is why the object is to be written next, if it is.
func (s *slot) wants(m Mode) (Reason, bool) {
	switch {
	case s.state == Idle || s.is(inFlight|held):
		return s.reason, false
	case s.is(silent) && (m != OnChange || s.shows == dead):
		return s.reason, false
	case s.is(silent):
		return Expired, true
	case !s.is(known):
		return First, true
	case s.shows != living:
		return Recovered, true
	}
	return Renewal, true
}
