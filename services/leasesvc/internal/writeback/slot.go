package writeback

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// The pause after a failed attempt doubles from minBackoff to maxBackoff.
const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 7 * time.Second
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

// Slot is what there is to write for one holder. The zero Slot is Idle. Its methods return the slot that follows and leave
// the receiver as it is.
type Slot struct {
	// Beat is the newest beat.
	Beat monotonic.Instant
	// Carried is the beat that the object carries; meaningful once Known.
	Carried monotonic.Instant
	// NotBefore is when the next attempt may start.
	NotBefore monotonic.Instant
	// Failures counts attempts since the last success.
	Failures int32
	// Policy is the index of the slot's Policy.
	Policy uint8
	State  State
	// Known is set by the first success: the object exists and is ours.
	Known bool
	// Dirty is set while Beat is not in the object.
	Dirty bool
	// InFlight is set between the start of a write and its end.
	InFlight bool
	// Held slots start no write until they are let go.
	Held bool
}

// Open returns the slot of a holder that was just heard for the first time.
func Open(policy uint8, beat monotonic.Instant) Slot {
	return Slot{Beat: beat, NotBefore: beat, Policy: policy, State: Pending, Dirty: true}
}

// Heard notes a beat.
func (s Slot) Heard(beat monotonic.Instant) Slot {
	s.Beat, s.Dirty = max(s.Beat, beat), true
	return s
}

// Silenced drops what has not been written: the holder expired, and its object shall look so.
func (s Slot) Silenced() Slot {
	s.Dirty = false
	return s
}

// Started notes that a write of the present Beat has begun.
func (s Slot) Started() Slot {
	s.InFlight = true
	return s
}

// Hold keeps writes from starting; Let allows them again.
func (s Slot) Hold() Slot {
	s.Held = true
	return s
}

// Let undoes Hold.
func (s Slot) Let() Slot {
	s.Held = false
	return s
}

// Succeeded notes the end of the write that a plan of the given instant began and that carried beat.
func (s Slot) Succeeded(planned, beat monotonic.Instant, p Policy) Slot {
	s.InFlight, s.Known, s.State, s.Failures = false, true, Written, 0
	s.Carried = beat
	s.Dirty = s.Dirty && s.Beat > beat
	s.NotBefore = planned.Add(p.Renew)
	return s
}

// Failed notes an attempt that ended in an error; it is repeated no sooner than after pause, even if the backoff is shorter.
func (s Slot) Failed(now monotonic.Instant, pause time.Duration) Slot {
	return s.again(now, pause, Retrying)
}

// Ownerless notes an attempt that found nobody for the object to belong to.
func (s Slot) Ownerless(now monotonic.Instant) Slot {
	return s.again(now, 0, NoOwner)
}

func (s Slot) again(now monotonic.Instant, pause time.Duration, state State) Slot {
	s.InFlight, s.State = false, state
	s.Failures++
	s.NotBefore = now.Add(max(pause, Backoff(s.Failures)))
	return s
}

// Backoff is the pause after the given number of failures in a row.
func Backoff(failures int32) time.Duration {
	doublings := min(max(failures-1, 0), 16)
	return min(minBackoff<<doublings, maxBackoff)
}
