package writeback

import (
	"math"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Granularity is the width of a bucket of the timing wheel. A write is found due at most this late.
const Granularity = 100 * time.Millisecond

const (
	// wheelBuckets covers 102 s.
	wheelBuckets = 1024
	// renewalShare: one of this many starts is a renewal if one is due.
	renewalShare = 4
)

// Schedule plans the writes of all slots. The instants that it is given must not go back.
type Schedule struct {
	policies []Policy
	slots    session.Slab[slot]
	wheel    *session.Wheel
	urgent   queue
	regular  queue
	queued   [reasons]int
	starts   uint
}

// NewSchedule returns an empty Schedule.
func NewSchedule(policies []Policy) *Schedule {
	return &Schedule{policies: policies, wheel: session.NewWheel(Granularity, wheelBuckets)}
}

// SlotOptions are the options of Open.
type SlotOptions struct {
	// Policy is the index of the Policy.
	Policy uint8
	// Phase is Phase of the holder's name.
	Phase uint16
	// Wait is how long the slot waits for Adopt before its Lease is written.
	Wait time.Duration
}

// Open begins a slot, or begins it again. The Lease is written once the holder has beaten at now or
// later.
func (s *Schedule) Open(now monotonic.Instant, i uint32, o SlotOptions) {
	s.slots.Extend(int(i) + 1)
	s.dequeue(i)
	*s.slots.At(i) = slot{shownBeat: now, due: now.Add(o.Wait), phase: o.Phase, policy: o.Policy, state: Pending}
	s.enqueue(now, i)
}

// ExistingLease is the content of a Lease that was found.
type ExistingLease struct {
	// Renewed is the renewTime. A time after now counts as now.
	Renewed monotonic.Instant
	// Duration is leaseDurationSeconds.
	Duration time.Duration
}

// Adopt sets what the existing Lease of a slot shows. The next write is due when the duration of
// the Lease requires it. Adopt returns false and does nothing if the Lease was written or adopted
// in this term, or is being written.
func (s *Schedule) Adopt(now monotonic.Instant, i uint32, l ExistingLease) bool {
	sl := s.slots.At(i)
	if sl.state == Idle || sl.has(leaseKnown|inFlight) {
		return false
	}
	p := s.policies[sl.policy]
	sl.flags |= leaseKnown
	sl.shownBeat, sl.shown = min(l.Renewed, now), shownAlive
	lapses := sl.shownBeat.Add(l.Duration)
	if lapses <= now {
		sl.shown = shownUnknown
		if p.Mode == OnChange {
			sl.shown = shownExpired
		}
	}
	// A fifth of the duration is reserved for the write and its retries.
	available := min(max(lapses.Add(-l.Duration/5).Sub(now), 0), p.Renew)
	if due := now.Add(fraction(available, sl.phase)); sl.failures == 0 || due > sl.due {
		sl.due = due
	}
	s.enqueue(now, i)
	return true
}

// StopWaiting ends the Wait of a slot that was not adopted.
func (s *Schedule) StopWaiting(now monotonic.Instant, i uint32) {
	sl := s.slots.At(i)
	if sl.place == inWheel && !sl.has(leaseKnown) && sl.failures == 0 && sl.due > now {
		sl.due = now
		s.enqueue(now, i)
	}
}

// Close ends a slot, also with a write in flight. It may be repeated.
func (s *Schedule) Close(i uint32) {
	s.dequeue(i)
	*s.slots.At(i) = slot{}
}

// HolderExpired records that the holder expired.
func (s *Schedule) HolderExpired(now monotonic.Instant, i uint32) {
	sl := s.slots.At(i)
	if sl.state == Idle || sl.has(holderExpired) {
		return
	}
	sl.flags |= holderExpired
	s.holderChanged(now, i)
}

// HolderRecovered records that the holder beats again. It does nothing if the holder had not
// expired.
func (s *Schedule) HolderRecovered(now monotonic.Instant, i uint32) {
	sl := s.slots.At(i)
	if !sl.has(holderExpired) {
		return
	}
	sl.flags &^= holderExpired
	if s.policies[sl.policy].Mode != OnChange {
		sl.shown = shownUnknown // the expiry was not written, but the Lease may have lapsed
	}
	s.holderChanged(now, i)
}

// holderChanged sets when the slot is due after the holder expired or recovered. The backoff after
// a failure continues, because the kube-apiserver may have asked for it.
func (s *Schedule) holderChanged(now monotonic.Instant, i uint32) {
	sl := s.slots.At(i)
	p := s.policies[sl.policy]
	reason, wanted := sl.nextReason(p.Mode)
	switch {
	case !wanted || sl.failures > 0:
	case reason.transition() && sl.has(leaseKnown):
		sl.due = now
	case reason == Renewal:
		sl.due = p.next(sl.shownBeat, sl.shownBeat, sl.phase) // it recovered before the expiry was written
	}
	s.enqueue(now, i)
}

// Suspend keeps writes of the slot from starting until Resume.
func (s *Schedule) Suspend(i uint32) {
	s.dequeue(i)
	s.slots.At(i).flags |= suspended
}

// Resume ends Suspend.
func (s *Schedule) Resume(now monotonic.Instant, i uint32) {
	s.slots.At(i).flags &^= suspended
	s.enqueue(now, i)
}

// Leave keeps writes of the slot from starting until Take: the holder has another program that
// writes its Lease. It may be repeated.
func (s *Schedule) Leave(i uint32) {
	sl := s.slots.At(i)
	if sl.state == Idle || sl.has(left) {
		return
	}
	s.dequeue(i)
	sl.flags |= left
}

// Take ends Leave. The Lease is written at once, because the other program writes no more. It does
// nothing without Leave.
func (s *Schedule) Take(now monotonic.Instant, i uint32) {
	sl := s.slots.At(i)
	if !sl.has(left) {
		return
	}
	sl.flags &^= left | leaseKnown
	sl.shown, sl.shownBeat, sl.due = shownUnknown, min(sl.shownBeat, now), now
	s.enqueue(now, i)
}

// Busy reports whether the slot is suspended or has a write in flight.
func (s *Schedule) Busy(i uint32) bool { return s.slots.At(i).has(suspended | inFlight) }

// Left reports whether the slot waits for Take.
func (s *Schedule) Left(i uint32) bool { return s.slots.At(i).has(left) }

// Policy returns the index of the slot's Policy.
func (s *Schedule) Policy(i uint32) uint8 { return s.slots.At(i).policy }

// Status returns the state of a slot that was opened.
func (s *Schedule) Status(i uint32) SlotStatus {
	sl := s.slots.At(i)
	state := sl.state
	if sl.has(left) {
		state = Left
	}
	return SlotStatus{
		State: state, Failures: int32(sl.failures), Reason: sl.reason, Due: sl.due, Scheduled: sl.place != notQueued,
	}
}

// Backlog returns the writes that the last Start found due.
func (s *Schedule) Backlog(now monotonic.Instant) Backlog {
	backlog := Backlog{
		Transitions: s.queued[Expired] + s.queued[Recovered], Firsts: s.queued[First], Renewals: s.queued[Renewal],
	}
	for _, q := range []*queue{&s.urgent, &s.regular} {
		if len(q.items) > 0 {
			backlog.Oldest = max(backlog.Oldest, now.Sub(s.slots.At(q.first()).due))
		}
	}
	return backlog
}

// Write is a planned write of one Lease.
type Write struct {
	Slot   uint32
	Reason Reason
	// Beat is the holder's last beat, which the Lease must show.
	Beat monotonic.Instant
	// Planned is when Start returned the write.
	Planned monotonic.Instant
}

// LastBeat returns the last beat of a slot's holder. It is called for due slots only.
type LastBeat func(slot uint32) monotonic.Instant

// Start returns at most limit writes, the most urgent first. Each is in flight until Succeeded,
// Failed, NoOwner or Close.
func (s *Schedule) Start(now monotonic.Instant, lastBeat LastBeat, limit int) []Write {
	s.wheel.Fire(now, math.MaxInt, func(i uint32) { s.fired(now, lastBeat, i) })
	var writes []Write
	for len(writes) < limit {
		i, ok := s.mostUrgent()
		if !ok {
			break
		}
		s.dequeue(i)
		if s.postpone(now, lastBeat, i) {
			continue
		}
		sl := s.slots.At(i)
		sl.flags |= inFlight
		if sl.reason.transition() {
			sl.shown = shownUnknown
		}
		s.starts++
		writes = append(writes, Write{Slot: i, Reason: sl.reason, Beat: lastBeat(i), Planned: now})
	}
	return writes
}

// fired queues a slot that the wheel has removed.
func (s *Schedule) fired(now monotonic.Instant, lastBeat LastBeat, i uint32) {
	sl := s.slots.At(i)
	sl.place = notQueued
	switch {
	case sl.due > now:
		s.file(i)
	case !s.postpone(now, lastBeat, i):
		s.push(i)
	}
}

// postpone files the slot for a later look if there is nothing to write: the Lease shows the last
// beat, or the holder has not beaten since Open.
func (s *Schedule) postpone(now monotonic.Instant, lastBeat LastBeat, i uint32) bool {
	sl := s.slots.At(i)
	switch {
	case sl.reason == Renewal && lastBeat(i) <= sl.shownBeat:
	case sl.reason == First && lastBeat(i) < sl.shownBeat:
	default:
		return false
	}
	sl.due = now.Add(s.policies[sl.policy].recheck())
	s.file(i)
	return true
}

// mostUrgent returns the slot to write next. It is false if none is due.
func (s *Schedule) mostUrgent() (i uint32, ok bool) {
	update := len(s.regular.items) > 0
	switch {
	case len(s.urgent.items) > 0 && (!update || s.starts%renewalShare != renewalShare-1):
		return s.urgent.first(), true
	case update:
		return s.regular.first(), true
	}
	return 0, false
}

// Succeeded ends a write. The Lease shows what the write says.
func (s *Schedule) Succeeded(now monotonic.Instant, w Write) {
	sl := s.slots.At(w.Slot)
	p := s.policies[sl.policy]
	spread := w.Reason == First || w.Reason.transition() || w.Planned.Sub(sl.due) > p.Renew/2
	switch w.Reason {
	case First, Recovered:
		sl.shown = shownAlive
	case Expired:
		sl.shown = shownExpired
	}
	sl.flags = sl.flags&^inFlight | leaseKnown
	sl.state, sl.failures, sl.shownBeat = Written, 0, w.Beat
	sl.due = p.next(w.Planned, w.Beat, sl.phase)
	if spread {
		sl.due = w.Planned.Add(fraction(sl.due.Sub(w.Planned), sl.phase))
	}
	if reason, wanted := sl.nextReason(p.Mode); wanted && reason.transition() {
		sl.due = now
	}
	s.enqueue(now, w.Slot)
}

// Failed ends a write with an error. It is repeated after the backoff, and no sooner than after
// pause.
func (s *Schedule) Failed(now monotonic.Instant, w Write, pause time.Duration) {
	s.retry(now, w, pause, Retrying)
}

// NoOwner ends a write that was not made because the Node that must own the Lease does not exist.
func (s *Schedule) NoOwner(now monotonic.Instant, w Write) {
	s.retry(now, w, 0, NoOwner)
}

func (s *Schedule) retry(now monotonic.Instant, w Write, pause time.Duration, state State) {
	sl := s.slots.At(w.Slot)
	sl.flags &^= inFlight
	sl.state = state
	if sl.failures < math.MaxUint16 {
		sl.failures++
	}
	sl.due = now.Add(max(pause, Backoff(int32(sl.failures))))
	s.enqueue(now, w.Slot)
}

// enqueue puts the slot into the wheel or into a queue, if a write is wanted.
func (s *Schedule) enqueue(now monotonic.Instant, i uint32) {
	s.dequeue(i)
	sl := s.slots.At(i)
	reason, wanted := sl.nextReason(s.policies[sl.policy].Mode)
	if !wanted {
		return
	}
	sl.reason = reason
	if sl.due > now {
		s.file(i)
		return
	}
	s.push(i)
}

func (s *Schedule) file(i uint32) {
	sl := s.slots.At(i)
	sl.place = inWheel
	s.wheel.File(i, sl.due)
}

// push queues a due slot. The keys put transitions before first writes, each in the order in which
// they became due, and renewals in the order in which their Leases lapse, or in which they became
// due if that is later.
func (s *Schedule) push(i uint32) {
	sl := s.slots.At(i)
	s.queued[sl.reason]++
	switch {
	case sl.reason.transition():
		sl.place = urgentQueue
		s.urgent.push(&s.slots, item{key: sl.due + math.MinInt64/2, slot: i})
	case sl.reason == First:
		sl.place = urgentQueue
		s.urgent.push(&s.slots, item{key: sl.due, slot: i})
	default:
		sl.place = regularQueue
		lapses := sl.shownBeat.Add(s.policies[sl.policy].Duration)
		s.regular.push(&s.slots, item{key: max(lapses, sl.due), slot: i})
	}
}

// dequeue removes the slot from the wheel or the queue that it is in.
func (s *Schedule) dequeue(i uint32) {
	sl := s.slots.At(i)
	switch sl.place {
	case inWheel:
		s.wheel.Remove(i)
	case urgentQueue:
		s.queued[sl.reason]--
		s.urgent.remove(&s.slots, i)
	case regularQueue:
		s.queued[sl.reason]--
		s.regular.remove(&s.slots, i)
	}
	sl.place = notQueued
}
