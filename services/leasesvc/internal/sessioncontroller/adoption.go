package sessioncontroller

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

const (
	// surveyWait is how long the objects of a new shard's holders are not written unseen, in the hope that they are read: in
	// all, with the time that it takes to notice that a replica is gone, less than a Lease has left when it is due.
	adoptionWait = 5 * time.Second
	// Shards come in swarms. One reading is for all that came until none has for surveyCalm, or for surveyRush at most.
	adoptionQuiet    = 300 * time.Millisecond
	adoptionMaxDelay = 2 * time.Second
	// foundFor is how long objects are remembered whose holders have not come.
	unclaimedTTL = 2 * time.Minute
)

// surveys is what is known of objects from before the terms.
type adoptions struct {
	// unread are the shards of which the objects have not been read under their terms, by when those began here.
	pending    map[*heldshards.Shard]monotonic.Instant
	anyPending atomic.Bool // whether there are unread shards, for others to see
	// found are the objects of those who have no session, to be forgotten by and by.
	unclaimed map[session.Key]writeback.LeaseRecord
	expires   monotonic.Instant
}

func newAdoptions() adoptions {
	return adoptions{pending: map[*heldshards.Shard]monotonic.Instant{}, unclaimed: map[session.Key]writeback.LeaseRecord{}}
}

func (s *adoptions) begin(t *heldshards.Shard, now monotonic.Instant) {
	s.pending[t] = now
	s.anyPending.Store(true)
}

func (s *adoptions) end(t *heldshards.Shard) {
	delete(s.pending, t)
	s.anyPending.Store(len(s.pending) > 0)
}

// wait is how long the object of a new session is not to be written unseen.
func (s *adoptions) writeDelay(t *heldshards.Shard, now monotonic.Instant) time.Duration {
	since, unread := s.pending[t]
	if !unread {
		return 0
	}
	return max(since.Add(adoptionWait).Sub(now), 0)
}

// calm tells whether it is time to read.
func (s *adoptions) settled(now monotonic.Instant) bool {
	calm := true
	for _, since := range s.pending {
		waited := now.Sub(since)
		if waited >= adoptionMaxDelay {
			return true
		}
		calm = calm && waited >= adoptionQuiet
	}
	return calm
}

// forget drops what nobody asked for.
func (s *adoptions) dropUnclaimed(now monotonic.Instant) {
	if len(s.unclaimed) > 0 && now > s.expires {
		s.unclaimed = map[session.Key]writeback.LeaseRecord{}
	}
}

// Survey is a reading of all objects, for the shards that came since the last.
type Adoption struct {
	// Namespaces are those of the classes, by their session.ClassID.
	Namespaces []string

	shards []*heldshards.Shard
}

// Unread tells whether there are shards for which a Survey is to be made. It does not block.
func (k *Controller) AdoptionPending() bool { return k.adoptions.anyPending.Load() }

// BeginSurvey returns what to read now, or nil when there is nothing, or more is about to come. Who gets one calls Found with
// what was read, and EndSurvey when all was; without EndSurvey the shards are asked for again.
func (k *Controller) BeginAdoption(ctx context.Context) (s *Adoption, err error) {
	err = k.do(ctx, func() {
		if len(k.adoptions.pending) == 0 || !k.adoptions.settled(k.now()) {
			return
		}
		s = &Adoption{}
		for t := range k.adoptions.pending {
			s.shards = append(s.shards, t)
		}
		for i := range k.cfg.Classes {
			s.Namespaces = append(s.Namespaces, k.cfg.Classes[i].Namespace)
		}
	})
	return s, err
}

// Found is an object that a Survey found.
type ExistingLease struct {
	Key   session.Key
	Lease writeback.LeaseRecord
}

// Found takes objects in: those of holders without a session are remembered for two minutes. A few hundred at a time keep no
// beat waiting.
func (k *Controller) Adopt(ctx context.Context, found []ExistingLease) error {
	return k.do(ctx, func() {
		now := k.now()
		k.adoptions.expires = now.Add(unclaimedTTL)
		for _, f := range found {
			if !f.Lease.Writable(f.Key.Name) {
				continue
			}
			if s, known := k.table.Get(f.Key); known {
				k.adopt(now, s.Ref.Slot(), f.Lease)
			} else if len(k.adoptions.unclaimed) < k.cfg.Limit {
				k.adoptions.unclaimed[f.Key] = f.Lease
			}
		}
	})
}

// EndSurvey tells that all objects have been read: who has none by now gets one. Should ctx end before all were told, the others
// wait as they would have without a survey.
func (k *Controller) FinishAdoption(ctx context.Context, s *Adoption) error {
	err := k.do(ctx, func() {
		for _, t := range s.shards {
			k.adoptions.end(t)
		}
	})
	for first, slots := 0, 1; err == nil && first < slots; first += slotsPerCall {
		err = k.do(ctx, func() {
			slots = k.shards.Len()
			k.stopWaiting(s, uint32(first), uint32(min(first+slotsPerCall, slots)))
		})
	}
	return err
}

// urge ends the wait of a share of the slots, as far as their shards are kept as they were when the survey began.
func (k *Controller) stopWaiting(s *Adoption, first, end uint32) {
	read := map[uint16]bool{}
	for _, t := range s.shards {
		if k.held[t.ID()] == t {
			read[uint16(t.ID())] = true
		}
	}
	now := k.now()
	for slot := first; slot < end; slot++ {
		if read[*k.shards.At(slot)] {
			k.writes.StopWaiting(now, slot)
		}
	}
}

// adopt lets the write slot know of an object that was found.
func (k *Controller) adopt(now monotonic.Instant, slot uint32, object writeback.LeaseRecord) {
	age := k.clock.Wall(now, now).Sub(object.RenewTime())
	if k.writes.Adopt(now, slot, writeback.ExistingLease{Renewed: now.Add(-age), Duration: object.Duration()}) {
		k.entries.At(slot).lease = object
	}
}

// recall adopts the object of a holder that was found before it came.
func (k *Controller) adoptEarlier(now monotonic.Instant, slot uint32, key session.Key) {
	if object, found := k.adoptions.unclaimed[key]; found {
		delete(k.adoptions.unclaimed, key)
		k.adopt(now, slot, object)
	}
}
