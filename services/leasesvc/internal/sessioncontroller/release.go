package sessioncontroller

import (
	"context"
	"errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// ErrSuperseded says that a session belongs to another boot of its holder.
var ErrSuperseded = errors.New("another boot of the holder has the session")

// Hold is a session whose object nobody writes, so that it can be deleted. Who gets one calls Let or Drop, once.
type Release struct {
	Namespace, Name string

	shard     *heldshards.Shard
	holder    session.Holder
	slot      uint32
	occupancy uint64
}

// Begin is called before the delete; see Job.Begin.
func (h *Release) BeginWrite() (ctx context.Context, end func(), ok bool) {
	return h.shard.BeginWrite()
}

// Hold waits until no write of the holder's object is in flight and keeps new ones from starting. It returns nil when there
// is no session, a NotKeptError when the holder's shard is not kept, and ErrSuperseded when the session is another boot's.
func (k *Controller) BeginRelease(ctx context.Context, h session.Holder, shard int) (*Release, error) {
	for {
		var (
			hold    *Release
			busy    <-chan struct{}
			refused error
		)
		if err := k.do(ctx, func() { hold, busy, refused = k.beginRelease(h, shard) }); err != nil {
			return nil, err
		}
		if busy == nil {
			return hold, refused
		}
		select {
		case <-busy:
		case <-k.done:
			return nil, ErrStopped
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (k *Controller) beginRelease(h session.Holder, shard int) (*Release, <-chan struct{}, error) {
	held := k.held[shard]
	if !k.admits(shard) {
		return nil, nil, NotHeldError{Shard: shard}
	}
	ref, outcome := k.table.Find(h)
	switch outcome {
	case session.Unknown:
		return nil, nil, nil
	case session.Superseded:
		return nil, nil, ErrSuperseded
	}
	slot := ref.Slot()
	if k.writes.Busy(slot) {
		return nil, k.exceptions.waitIdle(slot), nil
	}
	k.writes.Suspend(slot)
	return &Release{
		Namespace: k.cfg.Classes[h.Key.Class].Namespace, Name: h.Key.Name,
		shard: held, holder: h, slot: slot, occupancy: k.entries.At(slot).occupancy,
	}, nil, nil
}

// Let gives the session back as it was: its object has not been deleted.
func (k *Controller) AbortRelease(hold *Release) {
	k.endRelease(hold, func() { k.writes.Resume(k.now(), hold.slot) })
}

// Drop ends the session, whose object has been deleted. If another boot has taken the session over meanwhile, it goes on, and
// its object is made anew.
func (k *Controller) CompleteRelease(hold *Release) {
	k.endRelease(hold, func() {
		if _, outcome := k.table.Release(hold.holder); outcome == session.Renewed {
			k.sessionGone(hold.slot, hold.holder)
			return
		}
		k.reopen(hold)
		k.changes.touch(hold.slot)
	})
}

// reopen begins the object of a session anew that goes on, perhaps silently.
func (k *Controller) reopen(hold *Release) {
	now := k.now()
	k.writes.Open(now, hold.slot, writeback.SlotOptions{
		Policy: k.writes.Policy(hold.slot), Phase: writeback.Phase(hold.holder.Key.Name),
	})
	if s, _ := k.table.At(hold.slot); s.State == session.Expired {
		k.writes.HolderExpired(now, hold.slot)
	}
	delete(k.exceptions.errors, hold.slot)
	*k.entries.At(hold.slot) = leaseEntry{occupancy: hold.occupancy}
}

func (k *Controller) endRelease(hold *Release, then func()) {
	// The only error is that nothing is kept any more, and the hold is gone with it.
	_ = k.do(context.Background(), func() {
		if k.entries.At(hold.slot).occupancy != hold.occupancy {
			return // the session was forgotten, or its shard lost, while it was held
		}
		then()
		k.exceptions.notifyIdle(hold.slot)
	})
}
