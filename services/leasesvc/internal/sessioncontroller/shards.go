package sessioncontroller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// dropPoll is how often beginTerm looks whether the previous term of the shard has ended. That
// takes milliseconds.
const dropPoll = 5 * time.Millisecond

// NotHeldError reports that the shard is not held here.
type NotHeldError struct{ Shard int }

func (e NotHeldError) Error() string {
	return fmt.Sprintf("this replica does not lead shard %d", e.Shard)
}

// RunShard runs the sessions of a shard until its term ends. The given silences open sessions of
// holders that were silent before the term: such a holder counts as last heard so long ago, and
// recovers with its next beat.
//
// RunShard returns nil after the sessions were dropped and all writes under the term have returned.
// If the controller stops first, it waits for the writes too and returns ErrStopped.
func (c *Controller) RunShard(shard *HeldShard, silences ...session.Silence) error {
	err := c.beginTerm(shard, silences)
	if err == nil {
		err = c.follow(shard)
	}
	shard.Drain()
	if shard.Context().Err() != nil {
		return nil
	}
	return err
}

// follow returns after the sessions of the shard were dropped.
func (c *Controller) follow(shard *HeldShard) error {
	filled := time.NewTimer(c.cfg.FillTime)
	defer filled.Stop()
	for {
		select {
		case <-filled.C:
			// An error is the end of the term or of the controller.
			_ = c.do(shard.Context(), func() { c.setFilled(shard.ID()) })
		case <-shard.Context().Done():
			c.dropShard(shard)
			return nil
		case <-c.done:
			return ErrStopped
		}
	}
}

func (c *Controller) setFilled(shard int) {
	if !c.filled[shard] {
		c.filled[shard] = true
		c.changes.changeShards()
	}
}

// beginTerm waits until the sessions of the shard's previous term are dropped, and begins the new
// term.
func (c *Controller) beginTerm(shard *HeldShard, silences []session.Silence) error {
	for {
		begun := false
		err := c.do(shard.Context(), func() {
			if begun = c.held[shard.ID()] == nil; begun {
				c.addShard(shard, silences)
			}
		})
		if err != nil || begun {
			return err
		}
		select {
		case <-shard.Context().Done():
			return context.Cause(shard.Context())
		case <-time.After(dropPoll):
		}
	}
}

func (c *Controller) addShard(shard *HeldShard, silences []session.Silence) {
	now := c.now()
	c.held[shard.ID()], c.heldSince[shard.ID()], c.filled[shard.ID()] = shard, now, c.cfg.FillTime == 0
	if c.cfg.AdoptLeases {
		c.adoptions.add(shard, now)
	}
	for _, silence := range silences {
		ref, outcome := c.table.Restore(now, silence)
		if outcome != session.Opened {
			continue // the table is full, or the holder has a session
		}
		slot := ref.Slot()
		c.openSlot(now, slot, silence.Holder.Key, shard.ID())
		if s, _ := c.table.Lookup(ref); s.State == session.Expired {
			c.writes.HolderExpired(now, slot)
		}
		c.changes.touch(slot)
	}
	c.changes.changeShards()
	c.publishLeadership()
}

// accepts reports whether holders of the shard may register.
func (c *Controller) accepts(shard int) bool { return c.held[shard] != nil && !c.leaving[shard] }

// dropShard drops the sessions of a shard in portions. The shard stays held until all are dropped.
func (c *Controller) dropShard(shard *HeldShard) {
	id, ctx := shard.ID(), context.Background()
	// The only error is ErrStopped; all sessions are gone then.
	leave := func() {
		c.leaving[id] = true
		c.changes.changeShards()
	}
	if c.do(ctx, leave) != nil {
		return
	}
	if c.forEachSlotRange(ctx, func(first, end uint32) { c.dropSessions(id, first, end) }) != nil {
		return
	}
	_ = c.do(ctx, func() {
		c.held[id], c.leaving[id] = nil, false
		c.adoptions.remove(shard)
		c.publishLeadership()
	})
}

func (c *Controller) dropSessions(shard int, first, end uint32) {
	for slot := first; slot < end; slot++ {
		if int(*c.shards.At(slot)) == shard {
			s, _ := c.table.At(slot)
			c.table.Forget(s.Ref)
			c.sessionGone(slot, s.Holder)
		}
	}
}

// leadership lasts from the first held shard to the last one.
type leadership struct {
	ended chan struct{}
	// oldest and newest are the held shards with the lowest and the highest epoch.
	oldest, newest *HeldShard
}

// publishLeadership publishes the held shards. The channel stays the same while any shard is held.
func (c *Controller) publishLeadership() {
	last := c.leadership.Load()
	var next *leadership
	for _, shard := range c.held {
		switch {
		case shard == nil:
		case next == nil:
			next = &leadership{oldest: shard, newest: shard}
		case shard.Epoch() > next.newest.Epoch():
			next.newest = shard
		case shard.Epoch() < next.oldest.Epoch():
			next.oldest = shard
		}
	}
	switch {
	case next == nil && last != nil:
		close(last.ended)
	case next != nil && last != nil:
		next.ended = last.ended
	case next != nil:
		next.ended = make(chan struct{})
	}
	c.leadership.Store(next)
}

// Leadership returns a channel that is closed when the last held shard is lost. It is false while
// no shard is held.
func (c *Controller) Leadership() (ended <-chan struct{}, held bool) {
	if l := c.leadership.Load(); l != nil {
		return l.ended, true
	}
	return nil, false
}

// Epoch returns the newest epoch of the held shards; 0 if there is none.
func (c *Controller) Epoch() int64 {
	if l := c.leadership.Load(); l != nil {
		return l.newest.Epoch()
	}
	return 0
}

// CheckTerms returns ErrStopped if another replica may lead shards that were held here: after a
// pause of the process, say. A beat that was accepted counts as recorded by the leader of its shard
// if CheckTerms returns nil after it. The terms of a replica have one lease, or after it joined
// again a second one for the new ones.
func (c *Controller) CheckTerms() error {
	l := c.leadership.Load()
	if l == nil {
		return ErrStopped
	}
	for _, shard := range []*HeldShard{l.oldest, l.newest} {
		if t, _ := term.FromContext(shard.Context()); t != nil && t.Lapsed() {
			return ErrStopped
		}
	}
	return nil
}

// epoch returns the epoch of the term that has the session in a slot.
func (c *Controller) epoch(slot uint32) int64 { return c.held[*c.shards.At(slot)].Epoch() }

// isFilled reports whether a holder of the shard without a session has none anywhere.
func (c *Controller) isFilled(shard int) bool { return c.accepts(shard) && c.filled[shard] }

// CheckAbsent returns the held shard if it has been held for at least heldFor and the holder has no
// session in it; otherwise nil. It fails with a NotHeldError if the shard is not held.
func (c *Controller) CheckAbsent(ctx context.Context, key session.Key, shard int, heldFor time.Duration) (held *HeldShard, err error) {
	notHeld := false
	err = c.do(ctx, func() {
		notHeld = !c.accepts(shard)
		_, known := c.table.Get(key)
		if !notHeld && !known && c.now().Sub(c.heldSince[shard]) >= heldFor {
			held = c.held[shard]
		}
	})
	if err == nil && notHeld {
		err = NotHeldError{Shard: shard}
	}
	return held, err
}

// Silences returns the Suspect and Expired holders of each held shard with their silences, in no
// order. A held shard without such holders has an empty list. A holder that beats during the call
// may be listed or not.
func (c *Controller) Silences(ctx context.Context) (map[int][]session.Silence, error) {
	scan := &silenceScan{silences: map[int][]session.Silence{}}
	if err := c.do(ctx, func() { scan.shards = slices.Clone(c.held) }); err != nil {
		return nil, err
	}
	err := c.forEachSlotRange(ctx, func(first, end uint32) { c.collectSilences(scan, first, end) })
	if err != nil {
		return nil, err
	}
	err = c.do(ctx, func() { c.removeEndedShards(scan) })
	return scan.silences, err
}

// silenceScan is one call of Silences. shards are those that were held at its begin. A shard that
// ends during the scan is left out, because only a part of its sessions was seen.
type silenceScan struct {
	shards   []*HeldShard
	silences map[int][]session.Silence
}

func (c *Controller) collectSilences(scan *silenceScan, first, end uint32) {
	now := c.now()
	for slot := first; slot < end; slot++ {
		shard := *c.shards.At(slot)
		// Most slots are skipped after a look at two compact slabs.
		if shard == noShard || now.Sub(c.table.LastBeat(slot)) < c.shortestSuspect {
			continue
		}
		s, _ := c.table.At(slot)
		if silence := now.Sub(s.LastBeat); silence >= c.cfg.Classes[s.Holder.Key.Class].Session.Suspect {
			scan.silences[int(shard)] = append(scan.silences[int(shard)], session.Silence{Holder: s.Holder, For: silence})
		}
	}
}

func (c *Controller) removeEndedShards(scan *silenceScan) {
	for id, shard := range scan.shards {
		switch {
		case shard == nil || shard != c.held[id] || !c.accepts(id):
			delete(scan.silences, id)
		case scan.silences[id] == nil:
			scan.silences[id] = []session.Silence{}
		}
	}
}
