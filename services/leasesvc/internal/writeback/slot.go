package writeback

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// State is the result of the writes of a slot.
type State uint8

const (
	// Idle slots have no holder.
	Idle State = iota
	// Pending means that no write has succeeded in this term.
	Pending
	// Written means that the last write succeeded.
	Written
	// Retrying means that the last write failed.
	Retrying
	// NoOwner means that the Lease is not written because the Node that must own it does not exist.
	NoOwner
	// Left means that the Lease is not written because another program writes it. It stands for the
	// state before, which Take continues.
	Left
)

// Reason is why a Lease is written.
type Reason uint8

const (
	// First means that the state of the Lease is not known in this term.
	First Reason = iota
	// Renewal means that the policy asks for a newer renewTime.
	Renewal
	// Expired means that the holder expired and the Lease does not show it.
	Expired
	// Recovered means that the holder beats again and the Lease does not show it.
	Recovered
	reasons
)

// String returns the stable name of the reason, a value of a metric's label.
func (r Reason) String() string {
	if r < reasons {
		return [...]string{"first", "renewal", "expired", "recovered"}[r]
	}
	return "unknown"
}

// transition reports whether the write shows a change between alive and expired.
func (r Reason) transition() bool { return r == Expired || r == Recovered }

// SlotStatus is the state of a slot.
type SlotStatus struct {
	State State
	// Failures counts the failures since the last success.
	Failures int32
	// Reason is that of the next write, or of the write in flight, or of the last write.
	Reason Reason
	// Due is when the next write may start. It is set if Scheduled.
	Due monotonic.Instant
	// Scheduled reports whether a write is due or will be. It is false while a write is in flight.
	Scheduled bool
}

// Backlog counts the writes that are due and not in flight.
type Backlog struct {
	// Transitions are writes for Expired and Recovered.
	Transitions, Firsts, Renewals int
	// Oldest is how long the next write has been due.
	Oldest time.Duration
}

// slot is the plan of one holder's writes. The zero slot is Idle.
type slot struct {
	// shownBeat is the beat that the Lease shows. While the Lease is not known, it is when the slot
	// was opened.
	shownBeat monotonic.Instant
	// due is when the next write may start.
	due monotonic.Instant
	// heapIndex is the place in the urgent or regular queue.
	heapIndex uint32
	phase     uint16
	failures  uint16 // since the last success, saturating
	policy    uint8
	state     State
	reason    Reason // see SlotStatus.Reason
	place     place
	shown     shownState
	flags     flags
}

// place is where a slot waits.
type place uint8

const (
	notQueued   place = iota
	inWheel           // until it is due
	urgentQueue       // transitions and first writes
	regularQueue
)

// shownState is what a Lease tells its readers about its holder.
type shownState uint8

const (
	// shownUnknown: a write may have been made or not, or the Lease may have lapsed.
	shownUnknown shownState = iota
	shownAlive
	shownExpired
)

type flags uint8

const (
	// leaseKnown: the Lease was written or adopted in this term.
	leaseKnown flags = 1 << iota
	holderExpired
	inFlight
	// suspended slots start no write until Resume.
	suspended
	// left slots start no write until Take.
	left
)

func (s *slot) has(f flags) bool { return s.flags&f != 0 }

// nextReason returns why the Lease is written next. It is false if no write is wanted.
func (s *slot) nextReason(m Mode) (Reason, bool) {
	switch {
	case s.state == Idle || s.has(inFlight|suspended|left):
		return s.reason, false
	case s.has(holderExpired) && (m != OnChange || s.shown == shownExpired):
		return s.reason, false
	case s.has(holderExpired):
		return Expired, true
	case !s.has(leaseKnown):
		return First, true
	case s.shown != shownAlive:
		return Recovered, true
	}
	return Renewal, true
}
