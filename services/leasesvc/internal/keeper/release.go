package keeper

import (
	"context"
	"errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/tenure"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// ErrSuperseded says that a session belongs to another boot of its holder.
var ErrSuperseded = errors.New("another boot of the holder has the session")

// Hold is a session whose object nobody writes, so that it can be deleted. Who gets one calls Let or Drop, once.
type Hold struct {
	Namespace, Name string

	tenure *tenure.Tenure
	holder session.Holder
	slot   uint32
	tenant uint64
}

// Begin is called before the delete; see Job.Begin.
func (h *Hold) Begin() (ctx context.Context, end func(), ok bool) { return h.tenure.Begin() }

// Hold waits until no write of the holder's object is in flight and keeps new ones from starting. It returns nil when there
// is no session, a NotKeptError when the holder's shard is not kept, and ErrSuperseded when the session is another boot's.
func (k *Keeper) Hold(ctx context.Context, h session.Holder, shard int) (*Hold, error) {
	for {
		var (
			hold    *Hold
			busy    <-chan struct{}
			refused error
		)
		if err := k.do(ctx, func() { hold, busy, refused = k.hold(h, shard) }); err != nil {
			return nil, err
		}
		if busy == nil {
			return hold, refused
		}
		select {
		case <-busy:
		case <-k.done:
			return nil, ErrEnded
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (k *Keeper) hold(h session.Holder, shard int) (*Hold, <-chan struct{}, error) {
	held := k.kept[shard]
	if !k.keeps(shard) {
		return nil, nil, NotKeptError{Shard: shard}
	}
	ref, outcome := k.table.Find(h)
	switch outcome {
	case session.Unknown:
		return nil, nil, nil
	case session.Superseded:
		return nil, nil, ErrSuperseded
	}
	slot := ref.Slot()
	if k.book.Busy(slot) {
		return nil, k.troubles.wait(slot), nil
	}
	k.book.Hold(slot)
	return &Hold{
		Namespace: k.cfg.Classes[h.Key.Class].Namespace, Name: h.Key.Name,
		tenure: held, holder: h, slot: slot, tenant: k.entries.At(slot).tenant,
	}, nil, nil
}

// Let gives the session back as it was: its object has not been deleted.
func (k *Keeper) Let(hold *Hold) {
	k.end(hold, func() { k.book.Let(k.now(), hold.slot) })
}

// Drop ends the session, whose object has been deleted. If another boot has taken the session over meanwhile, it goes on, and
// its object is made anew.
func (k *Keeper) Drop(hold *Hold) {
	k.end(hold, func() {
		if _, outcome := k.table.Release(hold.holder); outcome == session.Renewed {
			k.vacate(hold.slot, hold.holder)
			return
		}
		k.reopen(hold)
		k.changes.touch(hold.slot)
	})
}

// reopen begins the object of a session anew that goes on, perhaps silently.
func (k *Keeper) reopen(hold *Hold) {
	now := k.now()
	k.book.Open(now, hold.slot, writeback.Opening{
		Policy: k.book.Policy(hold.slot), Phase: writeback.Phase(hold.holder.Key.Name),
	})
	if s, _ := k.table.At(hold.slot); s.State == session.Expired {
		k.book.Silenced(now, hold.slot)
	}
	delete(k.troubles.errors, hold.slot)
	*k.entries.At(hold.slot) = entry{tenant: hold.tenant}
}

func (k *Keeper) end(hold *Hold, then func()) {
	// The only error is that nothing is kept any more, and the hold is gone with it.
	_ = k.do(context.Background(), func() {
		if k.entries.At(hold.slot).tenant != hold.tenant {
			return // the session was forgotten, or its shard lost, while it was held
		}
		then()
		k.troubles.wake(hold.slot)
	})
}
