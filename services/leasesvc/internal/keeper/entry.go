package keeper

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// entry is what the Keeper knows of a slot's object beside its write slot.
type entry struct {
	// tenant numbers the uses of the slot, so that the end of a write finds out whether its holder still has it. Boots of one
	// holder share a tenant, because they share the object.
	tenant uint64
	// object is the Lease as last written in this term; nil until then.
	object    *coordinationv1.Lease
	writeTime time.Time
	lastError string
	// idle are closed when the slot has no write in flight and nobody holds it any more.
	idle []chan struct{}
}

func (e *entry) wake() {
	for _, waiter := range e.idle {
		close(waiter)
	}
	e.idle = nil
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
	Write        Write
}

// Write is how the object of a session stands.
type Write struct {
	State writeback.State
	// RenewTime, ResourceVersion and WriteTime are of the last write; zero before the first.
	RenewTime       time.Time
	ResourceVersion string
	WriteTime       time.Time
	// LastError is empty when the last attempt succeeded.
	LastError string
	// Failures counts attempts since the last success.
	Failures int32
}

func (k *Keeper) lease(s session.Session) Lease {
	now := k.now()
	return Lease{
		Holder: s.Holder, State: s.State, Epoch: k.epoch(s.Ref.Slot()), Sequence: s.Sequence,
		StartTime:    k.clock.Wall(now, s.Started),
		LastBeatTime: k.clock.Wall(now, s.LastBeat),
		Deadline:     k.clock.Wall(now, s.Deadline),
		Write:        k.write(s.Ref.Slot()),
	}
}

func (k *Keeper) write(slot uint32) Write {
	e, s := &k.entries[slot], &k.slots[slot]
	w := Write{State: s.State, WriteTime: e.writeTime, LastError: e.lastError, Failures: s.Failures}
	if e.object != nil {
		w.ResourceVersion = e.object.ResourceVersion
		if renewed := e.object.Spec.RenewTime; renewed != nil {
			w.RenewTime = renewed.Time
		}
	}
	return w
}

// vacate forgets the object of a session that is gone from the table and tells the watchers.
func (k *Keeper) vacate(slot uint32, h session.Holder) {
	last := k.gone(slot, h)
	k.clear(slot)
	k.send(&Event{Type: Deleted, Lease: last})
}

// clear frees a slot for another session.
func (k *Keeper) clear(slot uint32) {
	k.entries[slot].wake()
	k.slots[slot], k.shards[slot], k.entries[slot] = writeback.Slot{}, noShard, entry{}
}
