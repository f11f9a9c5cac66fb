package writeback

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// View is how a slot stands.
type SlotStatus struct {
	State State
	// Failures counts attempts since the last success.
	Failures int32
	// Reason of the next write, or of the one in flight, or, when there is neither, of the last.
	Reason Reason
	// Due is when the next write may start; meaningful if Some.
	Due monotonic.Instant
	// Some is set while a write is to come. One that is in flight has come.
	Scheduled bool
}

// View shows a slot that was opened.
func (b *Schedule) Status(i uint32) SlotStatus {
	s := b.slots.At(i)
	return SlotStatus{
		State: s.state, Failures: int32(s.failures), Reason: s.reason, Due: s.due, Scheduled: s.place != nowhere,
	}
}

// Backlog is what may be written and is not in flight yet.
type Backlog struct {
	// Transitions are Expired and Recovered writes, Firsts are those of objects of which nothing is known, Renewals the rest.
	Transitions, Firsts, Renewals int
	// Oldest is how long the one that comes next has been due.
	Oldest time.Duration
}

// Backlog counts what Start has found due, for others to see.
func (b *Schedule) Backlog(now monotonic.Instant) Backlog {
	backlog := Backlog{
		Transitions: b.pending[Expired] + b.pending[Recovered], Firsts: b.pending[First], Renewals: b.pending[Renewal],
	}
	for _, q := range []*queue{&b.urgent, &b.regular} {
		if len(q.members) > 0 {
			backlog.Oldest = max(backlog.Oldest, now.Sub(b.slots.At(q.first()).due))
		}
	}
	return backlog
}
