package keeper

import (
	"context"
	"fmt"
	"sync"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// NotKeptError says that the sessions of a shard are not kept here.
type NotKeptError struct{ Shard int }

func (e NotKeptError) Error() string {
	return fmt.Sprintf("shard %d is not held here", e.Shard)
}

// Tenure is one shard for one term, and the writes that are made under it. It is safe for concurrent use.
type Tenure struct {
	shard    int
	epoch    int64
	ctx      context.Context
	underway sync.WaitGroup // of writes; none is added once over is set

	mu   sync.Mutex // guards over
	over bool
}

// NewTenure returns the tenure of a shard under the term that ctx carries and ends with. The shard is below Config.Shards.
func NewTenure(ctx context.Context, shard int, epoch int64) *Tenure {
	return &Tenure{ctx: ctx, shard: shard, epoch: epoch}
}

// begin is asked before each write. With ok, the write is made with ctx, and end called when it has returned. Without, the
// term is over and nothing may be written.
func (t *Tenure) begin() (ctx context.Context, end func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.ctx.Err() != nil {
		return nil, nil, false
	}
	t.underway.Add(1)
	return t.ctx, t.underway.Done, true
}

// finish lets no write begin any more and waits for those under way.
func (t *Tenure) finish() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.underway.Wait()
}

// Keep takes the shard's holders in, as yet without sessions, until the tenure's term ends. It returns nil once the sessions
// have been dropped and every write made under the tenure has returned. When the Keeper ends before the term does, it waits
// for the writes as well and returns ErrEnded.
func (k *Keeper) Keep(t *Tenure) error {
	err := k.do(t.ctx, func() { k.admit(t) })
	if err == nil {
		select {
		case <-t.ctx.Done():
			// The only error is that there is nobody left who could keep anything.
			_ = k.do(context.Background(), func() { k.dismiss(t) })
		case <-k.done:
			err = ErrEnded
		}
	}
	t.finish()
	if t.ctx.Err() != nil {
		return nil
	}
	return err
}

// admit begins without sessions, whatever a tenure before this one knew.
func (k *Keeper) admit(t *Tenure) {
	k.kept[t.shard] = t
	k.serving()
}

// dismiss drops the sessions of a shard and tells the watchers in one event, so that no shard is too large for their queues.
func (k *Keeper) dismiss(t *Tenure) {
	var dropped []Lease
	for slot, shard := range k.shards {
		if int(shard) != t.shard {
			continue
		}
		s, _ := k.table.At(uint32(slot))
		if len(k.watchers) > 0 {
			dropped = append(dropped, k.gone(uint32(slot), s.Holder))
		}
		k.table.Forget(s.Ref)
		k.clear(uint32(slot))
	}
	k.kept[t.shard] = nil
	k.serving()
	if len(dropped) > 0 {
		k.send(&Event{Type: Dismissed, Dismissed: dropped})
	}
}

// reign lasts from the first shard to the last.
type reign struct {
	over chan struct{}
	// epoch is the newest of the tenures.
	epoch int64
}

// serving publishes what is kept. The channel is that of the reign before unless this is a new one.
func (k *Keeper) serving() {
	last := k.reign.Load()
	var next *reign
	for _, t := range k.kept {
		switch {
		case t == nil:
		case next == nil:
			next = &reign{epoch: t.epoch}
		default:
			next.epoch = max(next.epoch, t.epoch)
		}
	}
	switch {
	case next == nil && last != nil:
		close(last.over)
	case next != nil && last != nil:
		next.over = last.over
	case next != nil:
		next.over = make(chan struct{})
	}
	k.reign.Store(next)
}

// Serving returns a channel that is closed when the last shard has been lost; false while there is none.
func (k *Keeper) Serving() (over <-chan struct{}, some bool) {
	if r := k.reign.Load(); r != nil {
		return r.over, true
	}
	return nil, false
}

// Epoch is that of the newest term of all shards kept here, 0 when there is none.
func (k *Keeper) Epoch() int64 {
	if r := k.reign.Load(); r != nil {
		return r.epoch
	}
	return 0
}

// epoch is that of the term under which the session in a slot is kept.
func (k *Keeper) epoch(slot uint32) int64 { return k.kept[k.shards[slot]].epoch }

// gone is the last that is said of a session that leaves its slot.
func (k *Keeper) gone(slot uint32, h session.Holder) Lease {
	return Lease{Holder: h, State: session.Gone, Epoch: k.epoch(slot), Write: k.write(slot)}
}
