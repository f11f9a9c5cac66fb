package writeback

import (
	"math"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/slab"
)

// Book is the slots of one owner. Its methods take the owner's time, which never goes backwards.
type Schedule struct {
	policies []Policy
	slots    slab.Slab[slot]
	wheel    wheel
	urgent   queue
	regular  queue
	pending  [reasons]int // in the queues
	starts   uint
}

// NewBook returns an empty Book.
func NewSchedule(policies []Policy) *Schedule {
	return &Schedule{policies: policies, wheel: newWheel()}
}

// Opening is what a slot begins with.
type SlotOptions struct {
	// Policy is the index of the slot's Policy.
	Policy uint8
	// Phase is the Phase of the holder's name.
	Phase uint16
	// Wait is how long the slot may wait for Adopt before its object is written unseen.
	Wait time.Duration
}

// Open begins a slot, whose object is written once the holder has been heard at now or later. A slot that is in use begins
// anew.
func (b *Schedule) Open(now monotonic.Instant, i uint32, o SlotOptions) {
	b.slots.Extend(int(i) + 1)
	b.withdraw(i)
	*b.slots.At(i) = slot{carried: now, due: now.Add(o.Wait), phase: o.Phase, policy: o.Policy, state: Pending}
	b.settle(now, i)
}

// Object is an object of the holder that was found.
type ExistingLease struct {
	// Renewed is its renewTime; one in the future counts as now.
	Renewed monotonic.Instant
	// Duration is how long after that its readers take the holder for alive.
	Duration time.Duration
}

// Adopt tells what the object of a slot shows of which nothing was known, be it from before this term. The object is written
// next at a time that its own duration allows. It returns whether there was anything to learn: of an object that was written
// or adopted before, or is being written, more is known already.
func (b *Schedule) Adopt(now monotonic.Instant, i uint32, o ExistingLease) bool {
	s := b.slots.At(i)
	if s.state == Idle || s.is(known|inFlight) {
		return false
	}
	p := b.policies[s.policy]
	s.marks |= known
	s.carried, s.shows = min(o.Renewed, now), living
	lapses := s.carried.Add(o.Duration)
	if lapses <= now {
		s.shows = doubtful
		if p.Mode == OnChange {
			s.shows = dead
		}
	}
	// A fifth of the duration is kept for the write and its repetitions.
	room := min(max(lapses.Add(-o.Duration/5).Sub(now), 0), p.Renew)
	if due := now.Add(share(room, s.phase)); s.failures == 0 || due > s.due {
		s.due = due
	}
	b.settle(now, i)
	return true
}

// Urge ends the wait of a slot for Adopt.
func (b *Schedule) StopWaiting(now monotonic.Instant, i uint32) {
	s := b.slots.At(i)
	if s.place == waiting && !s.is(known) && s.failures == 0 && s.due > now {
		s.due = now
		b.settle(now, i)
	}
}

// Close ends a slot, whatever is in flight. It may be repeated.
func (b *Schedule) Close(i uint32) {
	b.withdraw(i)
	*b.slots.At(i) = slot{}
}

// Silenced tells that the holder expired.
func (b *Schedule) HolderExpired(now monotonic.Instant, i uint32) {
	s := b.slots.At(i)
	if s.state == Idle || s.is(silent) {
		return
	}
	s.marks |= silent
	b.turn(now, i)
}

// Recovered tells that the holder beats again; with one that was not silenced it does nothing.
func (b *Schedule) HolderRecovered(now monotonic.Instant, i uint32) {
	s := b.slots.At(i)
	if !s.is(silent) {
		return
	}
	s.marks &^= silent
	if b.policies[s.policy].Mode != OnChange {
		s.shows = doubtful // nobody wrote that it was dead, but the object may have lapsed
	}
	b.turn(now, i)
}

// turn sets when a slot is due whose holder died or came back. The pause after a failure goes on: the kube-apiserver may have
// asked for it.
func (b *Schedule) turn(now monotonic.Instant, i uint32) {
	s := b.slots.At(i)
	p := b.policies[s.policy]
	reason, wanted := s.wants(p.Mode)
	switch {
	case !wanted || s.failures > 0:
	case transition(reason) && s.is(known):
		s.due = now
	case reason == Renewal:
		s.due = p.next(s.carried, s.carried, s.phase) // it died and came back before anybody wrote so
	}
	b.settle(now, i)
}

func transition(r Reason) bool { return r == Expired || r == Recovered }

// Hold keeps writes from starting; Let allows them again.
func (b *Schedule) Suspend(i uint32) {
	b.withdraw(i)
	b.slots.At(i).marks |= held
}

// Let undoes Hold.
func (b *Schedule) Resume(now monotonic.Instant, i uint32) {
	b.slots.At(i).marks &^= held
	b.settle(now, i)
}

// Busy tells whether the slot is held or has a write in flight.
func (b *Schedule) Busy(i uint32) bool { return b.slots.At(i).is(held | inFlight) }

// Policy is the index of the slot's Policy.
func (b *Schedule) Policy(i uint32) uint8 { return b.slots.At(i).policy }

// settle puts a slot where it belongs.
func (b *Schedule) settle(now monotonic.Instant, i uint32) {
	b.withdraw(i)
	s := b.slots.At(i)
	reason, wanted := s.wants(b.policies[s.policy].Mode)
	if !wanted {
		return
	}
	s.reason = reason
	if s.due > now {
		b.wheel.file(&b.slots, i)
		return
	}
	b.enqueue(i)
}

// enqueue queues transitions before first writes, and either by how long they have been due; renewals by when their readers
// stop believing, or, once that has passed, by how long they have been due.
func (b *Schedule) enqueue(i uint32) {
	s := b.slots.At(i)
	b.pending[s.reason]++
	switch {
	case transition(s.reason):
		s.place = urgent
		b.urgent.push(&b.slots, member{key: s.due + math.MinInt64/2, slot: i})
	case s.reason == First:
		s.place = urgent
		b.urgent.push(&b.slots, member{key: s.due, slot: i})
	default:
		s.place = regular
		b.regular.push(&b.slots, member{key: max(b.lapses(s), s.due), slot: i})
	}
}

// lapses is when readers of the object as it stands stop believing it.
func (b *Schedule) lapses(s *slot) monotonic.Instant {
	return s.carried.Add(b.policies[s.policy].Duration)
}

// withdraw takes a slot out of where it waits.
func (b *Schedule) withdraw(i uint32) {
	s := b.slots.At(i)
	switch s.place {
	case waiting:
		b.wheel.remove(&b.slots, i)
	case urgent:
		b.pending[s.reason]--
		b.urgent.remove(&b.slots, i)
	case regular:
		b.pending[s.reason]--
		b.regular.remove(&b.slots, i)
	}
	s.place = nowhere
}
