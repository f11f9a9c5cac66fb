package keeper

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/leaseobject"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/tenure"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

const (
	// surveyWait is how long the objects of a new shard's holders are not written unseen, in the hope that they are read: in
	// all, with the time that it takes to notice that a replica is gone, less than a Lease has left when it is due.
	surveyWait = 5 * time.Second
	// Shards come in swarms. One reading is for all that came until none has for surveyCalm, or for surveyRush at most.
	surveyCalm = 300 * time.Millisecond
	surveyRush = 2 * time.Second
	// foundFor is how long objects are remembered whose holders have not come.
	foundFor = 2 * time.Minute
)

// surveys is what is known of objects from before the terms.
type surveys struct {
	// unread are the shards of which the objects have not been read under their terms, by when those began here.
	unread map[*tenure.Tenure]monotonic.Instant
	some   atomic.Bool // whether there are unread shards, for others to see
	// found are the objects of those who have no session, to be forgotten by and by.
	found map[session.Key]leaseobject.Known
	until monotonic.Instant
}

func newSurveys() surveys {
	return surveys{unread: map[*tenure.Tenure]monotonic.Instant{}, found: map[session.Key]leaseobject.Known{}}
}

func (s *surveys) begin(t *tenure.Tenure, now monotonic.Instant) {
	s.unread[t] = now
	s.some.Store(true)
}

func (s *surveys) end(t *tenure.Tenure) {
	delete(s.unread, t)
	s.some.Store(len(s.unread) > 0)
}

// wait is how long the object of a new session is not to be written unseen.
func (s *surveys) wait(t *tenure.Tenure, now monotonic.Instant) time.Duration {
	since, unread := s.unread[t]
	if !unread {
		return 0
	}
	return max(since.Add(surveyWait).Sub(now), 0)
}

// calm tells whether it is time to read.
func (s *surveys) calm(now monotonic.Instant) bool {
	calm := true
	for _, since := range s.unread {
		waited := now.Sub(since)
		if waited >= surveyRush {
			return true
		}
		calm = calm && waited >= surveyCalm
	}
	return calm
}

// forget drops what nobody asked for.
func (s *surveys) forget(now monotonic.Instant) {
	if len(s.found) > 0 && now > s.until {
		s.found = map[session.Key]leaseobject.Known{}
	}
}

// Survey is a reading of all objects, for the shards that came since the last.
type Survey struct {
	// Namespaces are those of the classes, by their session.ClassID.
	Namespaces []string

	tenures []*tenure.Tenure
}

// Unread tells whether there are shards for which a Survey is to be made. It does not block.
func (k *Keeper) Unread() bool { return k.surveys.some.Load() }

// BeginSurvey returns what to read now, or nil when there is nothing, or more is about to come. Who gets one calls Found with
// what was read, and EndSurvey when all was; without EndSurvey the shards are asked for again.
func (k *Keeper) BeginSurvey(ctx context.Context) (s *Survey, err error) {
	err = k.do(ctx, func() {
		if len(k.surveys.unread) == 0 || !k.surveys.calm(k.now()) {
			return
		}
		s = &Survey{}
		for t := range k.surveys.unread {
			s.tenures = append(s.tenures, t)
		}
		for i := range k.cfg.Classes {
			s.Namespaces = append(s.Namespaces, k.cfg.Classes[i].Namespace)
		}
	})
	return s, err
}

// Found is an object that a Survey found.
type Found struct {
	Key    session.Key
	Object leaseobject.Known
}

// Found takes objects in: those of holders without a session are remembered for two minutes. A few hundred at a time keep no
// beat waiting.
func (k *Keeper) Found(ctx context.Context, found []Found) error {
	return k.do(ctx, func() {
		now := k.now()
		k.surveys.until = now.Add(foundFor)
		for _, f := range found {
			if !f.Object.Writable(f.Key.Name) {
				continue
			}
			if s, known := k.table.Get(f.Key); known {
				k.adopt(now, s.Ref.Slot(), f.Object)
			} else if len(k.surveys.found) < k.cfg.Limit {
				k.surveys.found[f.Key] = f.Object
			}
		}
	})
}

// EndSurvey tells that all objects have been read: who has none by now gets one. Should ctx end before all were told, the others
// wait as they would have without a survey.
func (k *Keeper) EndSurvey(ctx context.Context, s *Survey) error {
	err := k.do(ctx, func() {
		for _, t := range s.tenures {
			k.surveys.end(t)
		}
	})
	for first, slots := 0, 1; err == nil && first < slots; first += stride {
		err = k.do(ctx, func() {
			slots = k.shards.Len()
			k.urge(s, uint32(first), uint32(min(first+stride, slots)))
		})
	}
	return err
}

// urge ends the wait of a share of the slots, as far as their shards are kept as they were when the survey began.
func (k *Keeper) urge(s *Survey, first, end uint32) {
	read := map[uint16]bool{}
	for _, t := range s.tenures {
		if k.kept[t.Shard()] == t {
			read[uint16(t.Shard())] = true
		}
	}
	now := k.now()
	for slot := first; slot < end; slot++ {
		if read[*k.shards.At(slot)] {
			k.book.Urge(now, slot)
		}
	}
}

// adopt lets the write slot know of an object that was found.
func (k *Keeper) adopt(now monotonic.Instant, slot uint32, object leaseobject.Known) {
	age := k.clock.Wall(now, now).Sub(object.RenewTime())
	if k.book.Adopt(now, slot, writeback.Object{Renewed: now.Add(-age), Duration: object.Duration()}) {
		k.entries.At(slot).object = object
	}
}

// recall adopts the object of a holder that was found before it came.
func (k *Keeper) recall(now monotonic.Instant, slot uint32, key session.Key) {
	if object, found := k.surveys.found[key]; found {
		delete(k.surveys.found, key)
		k.adopt(now, slot, object)
	}
}
