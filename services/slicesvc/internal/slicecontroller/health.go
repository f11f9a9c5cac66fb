package slicecontroller

import (
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// maxHealthNames is how many Services a ServiceGroup names.
const maxHealthNames = 5

// ServiceGroup is some Services with the same trouble.
type ServiceGroup struct {
	// Count is the number of Services. First has the first of them, by name.
	Count int
	First []Key
	// Since is when the trouble of the first of them began.
	Since time.Time
	// Cause is the newest cause, of the Service Latest.
	Cause  string
	Latest Key
	// at is the time of Cause.
	at time.Time
}

// Add adds a Service. at is the time of the cause.
func (g *ServiceGroup) Add(key Key, since, at time.Time, cause string) {
	g.Count++
	if g.Since.IsZero() || since.Before(g.Since) {
		g.Since = since
	}
	if g.Count == 1 || at.After(g.at) {
		g.at, g.Cause, g.Latest = at, cause, key
	}
	place, _ := slices.BinarySearchFunc(g.First, key, index.CompareKeys)
	if place < maxHealthNames {
		g.First = slices.Insert(g.First, place, key)
		g.First = g.First[:min(len(g.First), maxHealthNames)]
	}
}

// HeldShard is a shard whose term has begun here.
type HeldShard struct {
	Shard int
	// Blocked is why no sync has begun yet, since Since; nil if syncs run or there is no error.
	Blocked error
	Since   time.Time
}

// Health is what is wrong with the Services of the held shards.
type Health struct {
	// Failing are the Services whose syncs fail. Contended are those whose slices another writer
	// keeps changing.
	Failing, Contended ServiceGroup
	// Shards are the held shards, ordered.
	Shards []HeldShard
}

// Health returns the health of the held shards. It costs what is wrong.
func (c *Syncer) Health() Health {
	var health Health
	now := time.Now()
	for _, owned := range c.shards.held() {
		owned.addHealth(&health, now)
	}
	return health
}

func (s *ownedShard) addHealth(to *Health, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to.Shards = append(to.Shards, HeldShard{Shard: s.shard, Blocked: s.blocked, Since: s.blockedSince})
	for key, failed := range s.failures {
		to.Failing.Add(key, failed.since, failed.at, failed.err.Error())
	}
	for key := range s.contended {
		contention := s.records[key].contention
		if writer := contention.writer(now); writer != "" {
			to.Contended.Add(key, contention.since, contention.latest, writer)
		}
	}
}

// expireContentions records a change of each Service whose other writer has stopped.
func (c *Syncer) expireContentions(held []*ownedShard) {
	now := time.Now()
	for _, owned := range held {
		for _, key := range owned.expireContentions(now) {
			c.source.changed(key)
		}
	}
}

func (s *ownedShard) expireContentions(now time.Time) (expired []Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.contended {
		if s.records[key].contention.writer(now) == "" {
			delete(s.contended, key)
			expired = append(expired, key)
		}
	}
	return expired
}
