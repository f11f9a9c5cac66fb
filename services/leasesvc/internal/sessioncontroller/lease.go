package sessioncontroller

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// entry is what the Keeper knows of a slot's object beside its write slot.
type leaseEntry struct {
	// tenant numbers the uses of the slot, so that the end of a write finds out whether its holder still has it. Boots of one
	// holder share a tenant, because they share the object.
	occupancy uint64
	// object is the Lease as last written, or found, in this term.
	lease writeback.LeaseRecord
	// writeTime is that of the last success, in nanoseconds since 1970; 0 before it.
	writeTime int64
}

// troubles is what few slots have, and no others shall have room for.
type writeExceptions struct {
	// errors are what the last attempts failed with, but for those of objects without an owner.
	errors map[uint32]string
	// waiters are closed when the slot has no write in flight and nobody holds it any more.
	waiters map[uint32][]chan struct{}
}

func newWriteExceptions() writeExceptions {
	return writeExceptions{errors: map[uint32]string{}, waiters: map[uint32][]chan struct{}{}}
}

// wait returns a channel that the next wake of the slot closes.
func (t *writeExceptions) waitIdle(slot uint32) <-chan struct{} {
	waiter := make(chan struct{})
	t.waiters[slot] = append(t.waiters[slot], waiter)
	return waiter
}

func (t *writeExceptions) notifyIdle(slot uint32) {
	for _, waiter := range t.waiters[slot] {
		close(waiter)
	}
	delete(t.waiters, slot)
}

// Lease is a session and its object, at one moment, with times by the wall clock.
type Lease struct {
	Holder session.Holder
	State  session.State
	// Epoch is that of the term under which the session is kept.
	Epoch        int64
	Sequence     uint64
	StartTime    time.Time
	LastBeatTime time.Time
	Deadline     time.Time
	Shard        int
	// Duplicate is another boot of the holder that beats, too; nil when there is none.
	Duplicate *Duplicate
	Write     WriteStatus
}

// Duplicate is a boot that is refused because another has the session.
type Duplicate struct {
	Boot string
	// RefuseTime is when it was last refused, by the wall clock.
	RefuseTime time.Time
	Refusals   int64
}

// Write is how the object of a session stands.
type WriteStatus struct {
	State writeback.State
	// RenewTime, ResourceVersion and WriteTime are of the last write; zero before the first.
	RenewTime       time.Time
	ResourceVersion string
	WriteTime       time.Time
	// LastError is empty when the last attempt succeeded.
	LastError string
	// Failures counts attempts since the last success.
	Failures int32
	// Reason is why the object is written next, or else why it was last.
	Reason writeback.Reason
	// Due is when the next write may start; zero when none is to come.
	Due time.Time
}

func (k *Controller) lease(s session.Session) Lease {
	now := k.now()
	l := Lease{
		Holder: s.Holder, State: s.State, Epoch: k.epoch(s.Ref.Slot()), Sequence: s.Sequence, Shard: int(*k.shards.At(s.Ref.Slot())),
		StartTime:    k.clock.Wall(now, s.Started),
		LastBeatTime: k.clock.Wall(now, s.LastBeat),
		Deadline:     k.clock.Wall(now, s.Deadline),
		Write:        k.writeStatus(now, s.Ref.Slot()),
	}
	if d, some := k.table.Duplicate(s.Ref); some {
		l.Duplicate = &Duplicate{Boot: d.Boot, RefuseTime: k.clock.Wall(now, d.Last), Refusals: d.Refusals}
	}
	return l
}

func (k *Controller) writeStatus(now monotonic.Instant, slot uint32) WriteStatus {
	e, v := k.entries.At(slot), k.writes.Status(slot)
	w := WriteStatus{
		State: v.State, RenewTime: e.lease.RenewTime(), ResourceVersion: e.lease.ResourceVersion(),
		LastError: k.exceptions.errors[slot], Failures: v.Failures, Reason: v.Reason,
	}
	if v.State == writeback.NoOwner {
		w.LastError = ErrNoOwner.Error()
	}
	if e.writeTime != 0 {
		w.WriteTime = time.Unix(0, e.writeTime)
	}
	if v.Scheduled {
		w.Due = k.clock.Wall(now, v.Due)
	}
	return w
}

// vacate forgets the object of a session that is gone from the table and tells the watchers.
func (k *Controller) sessionGone(slot uint32, h session.Holder) {
	k.changes.delete(slot, deletion{holder: h, epoch: k.epoch(slot), shard: *k.shards.At(slot), lease: k.entries.At(slot).lease})
	k.clearSlot(slot)
}

// clear frees a slot for another session.
func (k *Controller) clearSlot(slot uint32) {
	k.writes.Close(slot)
	k.exceptions.notifyIdle(slot)
	delete(k.exceptions.errors, slot)
	*k.shards.At(slot), *k.entries.At(slot) = noShard, leaseEntry{}
}
