package sessioncontroller

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

const (
	// adoptionWait is how long the Leases of a new shard wait for adoption before they are written.
	// Together with the detection of a lost replica it is shorter than the rest of a Lease's
	// duration when the Lease is due.
	adoptionWait = 5 * time.Second
	// Shards are acquired in groups. Adoption begins when no shard was acquired for adoptionQuiet,
	// or adoptionMaxDelay after the first one.
	adoptionQuiet    = 300 * time.Millisecond
	adoptionMaxDelay = 2 * time.Second
	// unclaimedTTL is how long the Leases of holders without a session are kept.
	unclaimedTTL = 2 * time.Minute
)

// adoptions is the state of the adoption of Leases that were written before the terms of their
// shards.
type adoptions struct {
	// pending are the shards to adopt, with the times at which they were acquired.
	pending    map[*HeldShard]monotonic.Instant
	anyPending atomic.Bool // len(pending) > 0, for other goroutines
	// unclaimed are Leases of holders without a session. All are dropped at the time expires.
	unclaimed map[session.Key]writeback.LeaseRecord
	expires   monotonic.Instant
}

func newAdoptions() adoptions {
	return adoptions{pending: map[*HeldShard]monotonic.Instant{}, unclaimed: map[session.Key]writeback.LeaseRecord{}}
}

func (a *adoptions) add(shard *HeldShard, now monotonic.Instant) {
	a.pending[shard] = now
	a.anyPending.Store(true)
}

func (a *adoptions) remove(shard *HeldShard) {
	delete(a.pending, shard)
	a.anyPending.Store(len(a.pending) > 0)
}

// writeDelay returns how long the Lease of a new session waits for adoption.
func (a *adoptions) writeDelay(shard *HeldShard, now monotonic.Instant) time.Duration {
	since, pending := a.pending[shard]
	if !pending {
		return 0
	}
	return max(since.Add(adoptionWait).Sub(now), 0)
}

// ready reports whether adoption may begin.
func (a *adoptions) ready(now monotonic.Instant) bool {
	if len(a.pending) == 0 {
		return false
	}
	quiet := true
	for _, since := range a.pending {
		waited := now.Sub(since)
		if waited >= adoptionMaxDelay {
			return true
		}
		quiet = quiet && waited >= adoptionQuiet
	}
	return quiet
}

func (a *adoptions) dropUnclaimed(now monotonic.Instant) {
	if len(a.unclaimed) > 0 && now > a.expires {
		a.unclaimed = map[session.Key]writeback.LeaseRecord{}
	}
}

// Adoption is one list of all Leases, for the shards that were acquired since the previous one.
type Adoption struct {
	// Namespaces are those of the classes, by session.ClassID.
	Namespaces []string

	shards []*HeldShard
}

// ListedLease is a Lease that was listed.
type ListedLease struct {
	Key   session.Key
	Lease writeback.LeaseRecord
}

// AdoptionPending reports whether shards wait for an Adoption. It does not block.
func (c *Controller) AdoptionPending() bool { return c.adoptions.anyPending.Load() }

// BeginAdoption returns the next Adoption, or nil if none is pending or further shards may follow
// at once. The caller passes the Leases to Adopt and then calls FinishAdoption. An Adoption that is
// not finished is returned again.
func (c *Controller) BeginAdoption(ctx context.Context) (a *Adoption, err error) {
	err = c.do(ctx, func() {
		if !c.adoptions.ready(c.now()) {
			return
		}
		a = &Adoption{}
		for shard := range c.adoptions.pending {
			a.shards = append(a.shards, shard)
		}
		for i := range c.cfg.Classes {
			a.Namespaces = append(a.Namespaces, c.cfg.Classes[i].Namespace)
		}
	})
	return a, err
}

// Adopt takes listed Leases. Those of holders without a session are kept for two minutes. One call
// should have a few hundred Leases, because batches wait for it.
func (c *Controller) Adopt(ctx context.Context, leases []ListedLease) error {
	return c.do(ctx, func() {
		now := c.now()
		c.adoptions.expires = now.Add(unclaimedTTL)
		for _, l := range leases {
			if !l.Lease.Writable(l.Key.Name) {
				continue
			}
			if s, known := c.table.Get(l.Key); known {
				c.adopt(now, s.Ref.Slot(), l.Lease)
			} else if len(c.adoptions.unclaimed) < c.cfg.Limit {
				c.adoptions.unclaimed[l.Key] = l.Lease
			}
		}
	})
}

// FinishAdoption ends the wait of all sessions whose Leases were not adopted: they have none. If
// ctx ends first, the remaining sessions wait for adoptionWait.
func (c *Controller) FinishAdoption(ctx context.Context, a *Adoption) error {
	err := c.do(ctx, func() {
		for _, shard := range a.shards {
			c.adoptions.remove(shard)
		}
	})
	if err != nil {
		return err
	}
	return c.forEachSlotRange(ctx, func(first, end uint32) { c.stopWaiting(a, first, end) })
}

// stopWaiting skips shards that were lost, or lost and acquired again, since BeginAdoption.
func (c *Controller) stopWaiting(a *Adoption, first, end uint32) {
	adopted := map[uint16]bool{}
	for _, shard := range a.shards {
		if c.held[shard.ID()] == shard {
			adopted[uint16(shard.ID())] = true
		}
	}
	now := c.now()
	for slot := first; slot < end; slot++ {
		if adopted[*c.shards.At(slot)] {
			c.writes.StopWaiting(now, slot)
		}
	}
}

func (c *Controller) adopt(now monotonic.Instant, slot uint32, lease writeback.LeaseRecord) {
	age := c.clock.WallTime(now, now).Sub(lease.RenewTime())
	if c.writes.Adopt(now, slot, writeback.ExistingLease{Renewed: now.Add(-age), Duration: lease.Duration()}) {
		c.entries.At(slot).lease = lease
	}
}

// adoptUnclaimed adopts a Lease that was listed before its holder registered.
func (c *Controller) adoptUnclaimed(now monotonic.Instant, slot uint32, key session.Key) {
	if lease, ok := c.adoptions.unclaimed[key]; ok {
		delete(c.adoptions.unclaimed, key)
		c.adopt(now, slot, lease)
	}
}
