package writeback

import (
	"math"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Write is one object to write.
type Write struct {
	Slot   uint32
	Reason Reason
	// Beat is the newest beat of the holder, which the object shall carry.
	Beat monotonic.Instant
	// Planned is when the write was handed out.
	Planned monotonic.Instant
}

// Heard tells the newest beat of a slot's holder. It is asked for slots that are due only.
type LastBeat func(slot uint32) monotonic.Instant

// fair is among how many starts one is for a renewal that is due, however many transitions and first writes there are.
const fair = 4

// Start hands out at most budget writes, the most urgent first; each is in flight from then on, until one of Succeeded, Failed,
// Ownerless and Close.
func (b *Schedule) Start(now monotonic.Instant, heard LastBeat, budget int) []Write {
	b.wheel.turn(&b.slots, now, func(i uint32) { b.ripen(now, heard, i) })
	var writes []Write
	for len(writes) < budget {
		i, some := b.pick()
		if !some {
			break
		}
		b.withdraw(i)
		if b.putOff(now, heard, i) {
			continue
		}
		s := b.slots.At(i)
		s.marks |= inFlight
		if transition(s.reason) {
			s.shows = doubtful
		}
		b.starts++
		writes = append(writes, Write{Slot: i, Reason: s.reason, Beat: heard(i), Planned: now})
	}
	return writes
}

// ripen finds a place for what came out of the wheel.
func (b *Schedule) ripen(now monotonic.Instant, heard LastBeat, i uint32) {
	switch {
	case b.slots.At(i).due > now:
		b.wheel.file(&b.slots, i)
	case !b.putOff(now, heard, i):
		b.enqueue(i)
	}
}

// putOff looks at a slot again later if there is nothing to say: the object shows the newest beat already, or the holder was
// not heard since the slot was opened.
func (b *Schedule) putOff(now monotonic.Instant, heard LastBeat, i uint32) bool {
	s := b.slots.At(i)
	switch {
	case s.reason == Renewal && heard(i) <= s.carried:
	case s.reason == First && heard(i) < s.carried:
	default:
		return false
	}
	s.due = now.Add(b.policies[s.policy].glance())
	b.wheel.file(&b.slots, i)
	return true
}

// pick is the slot that comes next.
func (b *Schedule) pick() (i uint32, some bool) {
	renewal := len(b.regular.members) > 0
	switch {
	case len(b.urgent.members) > 0 && (!renewal || b.starts%fair != fair-1):
		return b.urgent.first(), true
	case renewal:
		return b.regular.first(), true
	}
	return 0, false
}

// Succeeded notes the end of a write: the object shows what w says.
func (b *Schedule) Succeeded(now monotonic.Instant, w Write) {
	s := b.slots.At(w.Slot)
	p := b.policies[s.policy]
	hurried := w.Reason == First || transition(w.Reason) || w.Planned.Sub(s.due) > p.Renew/2
	switch w.Reason {
	case First, Recovered:
		s.shows = living
	case Expired:
		s.shows = dead
	}
	s.marks = s.marks&^inFlight | known
	s.state, s.failures, s.carried = Written, 0, w.Beat
	s.due = p.next(w.Planned, w.Beat, s.phase)
	if hurried {
		s.due = w.Planned.Add(share(s.due.Sub(w.Planned), s.phase))
	}
	if reason, wanted := s.wants(p.Mode); wanted && transition(reason) {
		s.due = now
	}
	b.settle(now, w.Slot)
}

// Failed notes a write that ended in an error; it is repeated no sooner than after pause, even if the backoff is shorter.
// What the object shows is what it showed before, or not, where w would have changed that.
func (b *Schedule) Failed(now monotonic.Instant, w Write, pause time.Duration) {
	b.again(now, w, pause, Retrying)
}

// Ownerless notes a write that found nobody for the object to belong to.
func (b *Schedule) NoOwner(now monotonic.Instant, w Write) {
	b.again(now, w, 0, NoOwner)
}

func (b *Schedule) again(now monotonic.Instant, w Write, pause time.Duration, state State) {
	s := b.slots.At(w.Slot)
	s.marks &^= inFlight
	s.state = state
	if s.failures < math.MaxUint16 {
		s.failures++
	}
	s.due = now.Add(max(pause, Backoff(int32(s.failures))))
	b.settle(now, w.Slot)
}
