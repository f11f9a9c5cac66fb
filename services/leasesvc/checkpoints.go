package leasesvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpointstore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

const (
	// reconnectBudget is how long an agent that lives may take, beyond its interval, to be heard by a replica that has just
	// claimed its shard: its longest pause between two attempts. A server that vanished without a word is missed two intervals
	// later still; that concerns whoever was suspect and beat in the last second before, and shows it expired for as long.
	reconnectBudget = 5 * time.Second
	// checkpointPeriod is how often it is looked at who is silent, and so how old a checkpoint may be that is untrue.
	checkpointPeriod = time.Second
	// checkpointTimeout bounds one read or write. Nobody is heard in a shard before its checkpoint has been read.
	checkpointTimeout = 2 * time.Second
)

// checkpoints remembers the silent holders of shards beyond the terms of this replica.
type checkpoints struct {
	store   *checkpointstore.Store
	catalog catalog
	rules   map[string]checkpoint.Rule
	logger  *slog.Logger
	calls   rollCall
	writes  *prometheus.CounterVec
	holders *prometheus.CounterVec
}

// newCheckpoints makes what remembers the silent. Without etcd it is nil, and every takeover grants a full grace.
func newCheckpoints(s *Service, deps Deps) (*checkpoints, error) {
	if deps.Etcd == nil {
		return nil, nil
	}
	c := &checkpoints{
		store:   checkpointstore.New(deps.Etcd, deps.Member.Cluster, ServiceName),
		catalog: newCatalog(&s.cfg), rules: map[string]checkpoint.Rule{}, logger: deps.Logger,
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_checkpoint_writes_total",
			Help: "Writes of checkpoints of silent holders to etcd, by verb and by result.",
		}, []string{"verb", "result"}),
		holders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_checkpoint_holders_total",
			Help: "Holders in checkpoints of shards that were taken over, by what was made of their silence; unreadable counts checkpoints.",
		}, []string{"result"}),
	}
	for _, class := range s.cfg.rules() {
		rule := class.Session
		c.rules[rule.Name] = checkpoint.Rule{Suspect: rule.Suspect, TTL: rule.TTL, MinGrace: rule.Interval + reconnectBudget}
	}
	if deps.Metrics == nil {
		return c, nil
	}
	for _, collector := range []prometheus.Collector{c.writes, c.holders} {
		if err := deps.Metrics.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of checkpoints: %w", err)
		}
	}
	return c, nil
}

// restore returns the holders of a shard of which the one who held it before knew that they were silent, and whether nothing
// is stored. What cannot be read in time, or at all, gives everybody a full grace.
func (c *checkpoints) restore(ctx context.Context, t *term.Term) (silences []session.Silence, empty bool) {
	if c == nil {
		return nil, true
	}
	ctx, cancel := context.WithTimeout(ctx, checkpointTimeout)
	defer cancel()
	value, err := c.store.Read(ctx, t.Shard())
	if err == nil && value == nil {
		return nil, true
	}
	var entries []checkpoint.Entry
	if err == nil {
		entries, err = checkpoint.Decode(value)
	}
	if err != nil {
		c.holders.WithLabelValues("unreadable").Inc()
		c.logger.Warn("who was silent before is not known; everybody has a full grace", "shard", t.Shard(), "error", err)
		return nil, false
	}
	for _, e := range entries {
		if silence, ok := c.inherit(e, t.Shard()); ok {
			silences = append(silences, silence)
		}
	}
	return silences, false
}

// inherit is what a stored silence means here.
func (c *checkpoints) inherit(e checkpoint.Entry, shard int) (session.Silence, bool) {
	class, served := c.catalog.byName[e.Class]
	holder := session.Holder{Key: session.Key{Class: class, Name: e.Name}, Boot: e.Boot}
	if !served || c.catalog.shardOfKey(holder.Key) != shard {
		c.holders.WithLabelValues("foreign").Inc()
		return session.Silence{}, false
	}
	rule := c.rules[e.Class]
	inherited := rule.Inherited(e.Silence)
	switch {
	case inherited <= 0:
		c.holders.WithLabelValues("full_grace").Inc()
		return session.Silence{}, false
	case rule.StaysExpired(e.Silence):
		c.holders.WithLabelValues("expired").Inc()
	default:
		c.holders.WithLabelValues("less_grace").Inc()
	}
	return session.Silence{Holder: holder, For: inherited}, true
}

// save keeps the checkpoint of a shard up to date until its term ends. It returns after its last write has.
func (c *checkpoints) save(ctx context.Context, t *term.Term, k *sessioncontroller.Controller, empty bool) {
	if c == nil {
		return
	}
	begin := time.Now()
	now := func() monotonic.Instant { return monotonic.Instant(time.Since(begin)) }
	ledger, failing := checkpoint.NewTracker(c.rules, empty), false
	ticker := time.NewTicker(checkpointPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.Done():
			return
		case <-ticker.C:
		}
		if counts := k.Counts(); ledger.Empty() && counts.Suspect+counts.Expired == 0 {
			continue // as nearly always; asking costs the keeper a walk
		}
		silences, kept := c.calls.of(ctx, k, t.Shard())
		if !kept {
			continue // not yet, or not any more
		}
		plan := ledger.Plan(now(), c.entries(silences))
		switch err := c.carryOut(ctx, t, plan); {
		case err == nil:
			ledger, failing = ledger.Applied(now(), plan), false
		case errors.Is(err, checkpointstore.ErrTermEnded) || ctx.Err() != nil:
			return
		default:
			if ledger = ledger.Unconfirmed(now(), plan); !failing {
				c.logger.Warn("the silent are not remembered; should this replica fail, they get a grace", "shard", t.Shard(), "error", err)
			}
			failing = true
		}
	}
}

func (c *checkpoints) entries(silences []session.Silence) []checkpoint.Entry {
	entries := make([]checkpoint.Entry, 0, len(silences))
	for _, s := range silences {
		entries = append(entries, checkpoint.Entry{
			Class: c.catalog.classes[s.Holder.Key.Class].Name, Name: s.Holder.Key.Name, Boot: s.Holder.Boot, Silence: s.For,
		})
	}
	return entries
}

func (c *checkpoints) carryOut(ctx context.Context, t *term.Term, plan checkpoint.Plan) error {
	ctx, cancel := context.WithTimeout(ctx, checkpointTimeout)
	defer cancel()
	var verb string
	var err error
	switch plan.Action {
	case checkpoint.None:
		return nil
	case checkpoint.Put:
		verb, err = "put", c.store.Put(ctx, t, plan.Value)
	case checkpoint.Delete:
		verb, err = "delete", c.store.Delete(ctx, t)
	}
	result := "success"
	if err != nil {
		result = "error"
	}
	c.writes.WithLabelValues(verb, result).Inc()
	return err
}
